"""The methods of the ProcGen benchmarks: cloning (bc) and lifelong learning (ppo)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .consolidations import FisherSettings
from .filters import AVERAGING, BOOTSTRAP, ORANGE, BootstrapSettings
from .registry import (
    CLONING,
    DESCENT,
    ENSEMBLE,
    LIFELONG,
    NETWORK,
    PARTICLES,
    WEIGHTED,
    Style,
    method,
)
from .settings import Count, Number

if TYPE_CHECKING:
    from ..rl import BehaviourCloning
    from .learners.policy import PolicyLearner
    from .setup import PolicySetup

PLAIN = Style(ORANGE, "s")
TRAC = Style("#009E73", "v")
EWC = Style("#0072B2", "^")


class PolicyEWCSettings(FisherSettings):
    """Settings of elastic weight consolidation of a policy."""

    fisher: Literal["exact", "sampled", "empirical"] = "sampled"
    """Fisher information of the policy: "exact", "sampled" or "empirical"."""
    fisher_samples: Count | None = 6400
    """Frames for the Fisher information, from the end of a level: 100 batches of 64."""
    ewc_strength: Number = 500.0
    """EWC's lambda."""


@method(
    "bc",
    "behaviour cloning, one network",
    family=CLONING,
    label="Behaviour cloning",
    style=PLAIN,
    reads=DESCENT,
)
def bc(setup: PolicySetup) -> BehaviourCloning:
    return setup.cloning(setup.descent())


@method(
    "bc+wpf",
    "behaviour cloning, weighted particles",
    family=CLONING,
    label="Behaviour cloning + WPF",
    style=PLAIN,
    reads=WEIGHTED,
    base="bc",
    weighted=True,
)
def bc_wpf(setup: PolicySetup) -> BehaviourCloning:
    return setup.cloning(setup.weighted())


@method(
    "bc+averaging",
    "behaviour cloning, the same particles, unweighted",
    family=CLONING,
    label="Behaviour cloning + averaging",
    style=AVERAGING,
    reads=ENSEMBLE,
)
def bc_averaging(setup: PolicySetup) -> BehaviourCloning:
    return setup.cloning(setup.averaging())


@method(
    "bc+bootstrap",
    "behaviour cloning, particles resampled and perturbed, no gradients",
    family=CLONING,
    label="Behaviour cloning + baseline filter",
    style=BOOTSTRAP,
    settings=BootstrapSettings,
    reads=NETWORK + PARTICLES,
)
def bc_bootstrap(setup: PolicySetup) -> BehaviourCloning:
    return setup.cloning(setup.bootstrap(setup.own(BootstrapSettings).perturbation, "sir"))


@method("ppo", "PPO, one network", family=LIFELONG, label="PPO", style=PLAIN, reads=DESCENT)
def ppo(setup: PolicySetup) -> PolicyLearner:
    return setup.playing(setup.descent())


@method(
    "ppo+wpf",
    "PPO, weighted particles",
    family=LIFELONG,
    label="PPO + WPF",
    style=PLAIN,
    reads=WEIGHTED,
    base="ppo",
    weighted=True,
)
def ppo_wpf(setup: PolicySetup) -> PolicyLearner:
    return setup.playing(setup.weighted())


@method(
    "ppo+averaging",
    "PPO, the same particles, unweighted",
    family=LIFELONG,
    label="PPO + averaging",
    style=AVERAGING,
    reads=ENSEMBLE,
)
def ppo_averaging(setup: PolicySetup) -> PolicyLearner:
    return setup.playing(setup.averaging())


@method(
    "ppo+bootstrap",
    "PPO, particles resampled and perturbed, no gradients",
    family=LIFELONG,
    label="PPO + baseline filter",
    style=BOOTSTRAP,
    settings=BootstrapSettings,
    reads=NETWORK + PARTICLES,
)
def ppo_bootstrap(setup: PolicySetup) -> PolicyLearner:
    return setup.playing(setup.lineage_bootstrap(setup.own(BootstrapSettings).perturbation))


@method(
    "ppo+trac",
    "PPO with TRAC, one network",
    family=LIFELONG,
    label="PPO + TRAC",
    style=TRAC,
    reads=DESCENT,
)
def ppo_trac(setup: PolicySetup) -> PolicyLearner:
    return setup.playing(setup.with_trac().descent())


@method(
    "ppo+trac+wpf",
    "PPO with TRAC, weighted particles",
    family=LIFELONG,
    label="PPO + TRAC + WPF",
    style=TRAC,
    reads=WEIGHTED,
    base="ppo+trac",
    weighted=True,
)
def ppo_trac_wpf(setup: PolicySetup) -> PolicyLearner:
    return setup.playing(setup.with_trac().weighted())


@method(
    "ppo+ewc",
    "PPO with EWC, one network",
    family=LIFELONG,
    label="PPO + EWC",
    style=EWC,
    settings=PolicyEWCSettings,
    reads=DESCENT,
)
def ppo_ewc(setup: PolicySetup) -> PolicyLearner:
    return setup.playing(setup.descent(), setup.own(PolicyEWCSettings))


@method(
    "ppo+ewc+wpf",
    "PPO with EWC, weighted particles",
    family=LIFELONG,
    label="PPO + EWC + WPF",
    style=EWC,
    settings=PolicyEWCSettings,
    reads=WEIGHTED,
    base="ppo+ewc",
    weighted=True,
)
def ppo_ewc_wpf(setup: PolicySetup) -> PolicyLearner:
    return setup.playing(setup.weighted(), setup.own(PolicyEWCSettings))
