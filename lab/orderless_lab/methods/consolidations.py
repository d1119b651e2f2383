"""EWC, LwF and SI: each for one network, and over weighted particles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import orderless as ol  # without torch, which names of `ol` import when they are first used

from .registry import DESCENT, WEIGHTED, Style, method
from .settings import Count, Number, Positive, Settings

if TYPE_CHECKING:
    from orderless.filters import GradientFilter

    from .learners import Learner
    from .setup import Setup

# How steps include a quadratic penalty, see `GradientFilter.register`
PenaltyStep = Literal["auto", "closed", "gradient"]
CLOSED = {"auto": None, "closed": True, "gradient": False}

# The literature's strengths, by scenario: van de Ven et al. (2022), on SplitMNIST and on CIFAR-100
EWC_STRENGTHS = {"task": 1e5, "domain": 1e10, "class": 1e9}
EWC_STRENGTHS |= {"splitcifar100-task": 1e3, "splitcifar100-domain": 1e3}
EWC_STRENGTHS |= {"splitcifar100-class": 100.0}
SI_STRENGTHS = {"task": 10.0, "domain": 5e4, "class": 5e3}
SI_STRENGTHS |= {"splitcifar100-task": 100.0, "splitcifar100-domain": 500.0}
SI_STRENGTHS |= {"splitcifar100-class": 5.0}

BLUE = Style("#0072B2", "^")
GREEN = Style("#009E73", "v")
PINK = Style("#CC79A7", "P")


def usual_strength(setup: Setup, strengths: dict[str, float]) -> float:
    """The literature's strength for the scenario, or for the benchmark and scenario."""
    kind = setup.scenario.kind
    return strengths.get(f"{setup.scenario.name}-{kind}", strengths[kind])


class FisherSettings(Settings):
    """Settings of elastic weight consolidation, of a classifier or a policy."""

    ewc_mode: Literal["separate", "online"] = "separate"
    """EWC with one penalty per past task ("separate") or one running penalty ("online")."""
    fisher: Literal["exact", "sampled", "empirical"] = "exact"
    """Fisher information: "exact", "sampled" or "empirical"."""
    fisher_samples: Count | None = 500
    """Samples of a task for the Fisher information; None: all."""

    def penalty(self, particles: ol.Ensemble, strength: float, **more: Any) -> ol.EWC:
        options = {"fisher": self.fisher, "fisher_samples": self.fisher_samples, **more}
        return ol.EWC(particles, strength, mode=self.ewc_mode, **options)


class EWCSettings(FisherSettings):
    """Settings of elastic weight consolidation."""

    ewc_step: PenaltyStep = "auto"
    """EWC's steps: "closed" (SGD alone; stable at any strength) or by the penalty's "gradient";
    "auto": closed with SGD, by the gradient with Adam, for which the literature's strengths are
    meant."""
    ewc_strength: Number | None = None
    """EWC's lambda; None: the literature's for benchmark and scenario."""


def with_ewc(setup: Setup, filter: GradientFilter) -> Learner:
    own = setup.own(EWCSettings)
    strength = own.ewc_strength
    if strength is None:
        strength = usual_strength(setup, EWC_STRENGTHS)
    penalty = own.penalty(filter.particles, strength)
    return setup.learner(filter, consolidation=penalty, closed=CLOSED[own.ewc_step])


@method(
    "ewc",
    "elastic weight consolidation, one network",
    label="EWC",
    style=BLUE,
    settings=EWCSettings,
    reads=DESCENT,
)
def ewc(setup: Setup) -> Learner:
    return with_ewc(setup, setup.descent())


@method(
    "ewc+wpf",
    "elastic weight consolidation, over weighted particles",
    label="EWC + WPF",
    style=BLUE,
    settings=EWCSettings,
    reads=WEIGHTED,
    base="ewc",
    weighted=True,
)
def ewc_wpf(setup: Setup) -> Learner:
    return with_ewc(setup, setup.weighted())


class LwFSettings(Settings):
    """Settings of learning without forgetting."""

    lwf_temperature: Positive = 2.0
    """LwF's temperature."""
    lwf_strength: Number = 1.0
    """LwF's factor; the literature's is 1."""


def with_lwf(setup: Setup, filter: GradientFilter) -> Learner:
    own = setup.own(LwFSettings)
    penalty = ol.LwF(filter.particles, own.lwf_strength, temperature=own.lwf_temperature)
    return setup.learner(filter, consolidation=penalty)


@method(
    "lwf",
    "learning without forgetting, one network",
    label="LwF",
    style=GREEN,
    settings=LwFSettings,
    reads=DESCENT,
)
def lwf(setup: Setup) -> Learner:
    return with_lwf(setup, setup.descent())


@method(
    "lwf+wpf",
    "learning without forgetting, over weighted particles",
    label="LwF + WPF",
    style=GREEN,
    settings=LwFSettings,
    reads=WEIGHTED,
    base="lwf",
    weighted=True,
)
def lwf_wpf(setup: Setup) -> Learner:
    return with_lwf(setup, setup.weighted())


class SISettings(Settings):
    """Settings of synaptic intelligence."""

    si_xi: Positive = 0.1
    """SI's damping."""
    si_step: PenaltyStep = "auto"
    """SI's steps: "closed" (SGD alone; stable at any strength) or by the penalty's "gradient";
    "auto": closed with SGD, by the gradient with Adam, for which the literature's strengths are
    meant."""
    si_strength: Number | None = None
    """SI's c; None: the literature's for benchmark and scenario."""


def with_si(setup: Setup, filter: GradientFilter) -> Learner:
    own = setup.own(SISettings)
    strength = own.si_strength
    if strength is None:
        strength = usual_strength(setup, SI_STRENGTHS)
    penalty = ol.SI(filter.particles, strength, xi=own.si_xi)
    return setup.learner(filter, consolidation=penalty, closed=CLOSED[own.si_step])


@method(
    "si",
    "synaptic intelligence, one network",
    label="SI",
    style=PINK,
    settings=SISettings,
    reads=DESCENT,
)
def si(setup: Setup) -> Learner:
    return with_si(setup, setup.descent())


@method(
    "si+wpf",
    "synaptic intelligence, over weighted particles",
    label="SI + WPF",
    style=PINK,
    settings=SISettings,
    reads=WEIGHTED,
    base="si",
    weighted=True,
)
def si_wpf(setup: Setup) -> Learner:
    return with_si(setup, setup.weighted())
