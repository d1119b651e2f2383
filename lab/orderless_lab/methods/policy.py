"""The methods of the ProcGen benchmarks, in the order of the tables."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .config import Config, Count, Number
from .registry import NoSettings, Style, method
from .supervised import AVERAGING, BOOTSTRAP, BootstrapSettings

# The part of a method's name after `+`: the title and the label of its particles.
PARTICLES = {
    "": ("one network", ""),
    "+wpf": ("weighted particles", " + WPF"),
    "+averaging": ("the same particles, unweighted", " + averaging"),
    "+bootstrap": ("particles resampled and perturbed, no gradients", " + baseline filter"),
}
STYLES = {"+averaging": AVERAGING, "+bootstrap": BOOTSTRAP}  # the others have their method's


@dataclass(frozen=True)
class PolicyEWCSettings(Config):
    """Settings of elastic weight consolidation of a policy."""

    ewc_mode: Literal["separate", "online"] = "separate"
    """EWC with one penalty per past level ("separate") or one running penalty ("online")."""
    fisher: Literal["exact", "sampled", "empirical"] = "sampled"
    """Fisher information of the policy: "exact", "sampled" or "empirical"."""
    fisher_samples: Count | None = 6400
    """Frames for the Fisher information, from the end of a level: 100 batches of 64."""
    ewc_strength: Number = 500.0
    """EWC's lambda."""


# Settings that only one of the two benchmarks reads; they have no effect on the other.
OF_CLONING = ("transitions", "expert", "collect_seed", "batch_size", "episodes", "epochs",
              "iterations")  # fmt: skip
OF_PLAYING = ("steps_per_level", "envs", "rollout", "minibatches", "ppo_epochs", "act", "weigh_by",
              "bins")  # fmt: skip


def _register(
    name: str,
    title: str,
    label: str,
    style: Style,
    *,
    cloning: bool = False,
    suffixes: Iterable[str] = PARTICLES,
    config: type[Any] = NoSettings,
    **options: bool,
) -> None:
    """Register a method for each kind of particles, with options of `PolicySetup.build`."""
    for suffix in suffixes:
        over, also = PARTICLES[suffix]
        method(
            f"{name}{suffix}",
            f"{title}, {over}",
            particles=bool(suffix),
            kind="cloning" if cloning else "lifelong",
            label=f"{label}{also}",
            style=STYLES.get(suffix, style),
            base=name if suffix == "+wpf" else None,
            weighted=suffix == "+wpf",
            config=BootstrapSettings if suffix == "+bootstrap" else config,
            ignores=OF_PLAYING if cloning else OF_CLONING,
        )(lambda setup, suffix=suffix: setup.build(suffix, cloning=cloning, **options))


PLAIN, TRAC, EWC = Style("#D55E00", "s"), Style("#009E73", "v"), Style("#0072B2", "^")
_two: Any = {"suffixes": ("", "+wpf")}

_register("bc", "behaviour cloning", "Behaviour cloning", PLAIN, cloning=True)
_register("ppo", "PPO", "PPO", PLAIN)
_register("ppo+trac", "PPO with TRAC", "PPO + TRAC", TRAC, trac=True, **_two)
_register("ppo+ewc", "PPO with EWC", "PPO + EWC", EWC, config=PolicyEWCSettings, ewc=True, **_two)
