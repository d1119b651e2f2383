"""The methods of the supervised benchmarks, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orderless as ol  # without torch, which names of `ol` import when they are first used

from .config import Config, Count, Number, Positive, Size
from .registry import Style, method

if TYPE_CHECKING:
    from orderless.consolidation import Consolidation
    from orderless.filters import GradientFilter

    from .learners import ExactLearner, KeptLearner, Learner
    from .setup import Setup

WPF, AVERAGING, BOOTSTRAP = Style("#D55E00", "*"), Style("#E69F00", "o"), Style("#999999", "X")


@method(
    "wpf",
    "weighted particle filter",
    True,
    label="Weighted particle filter",
    style=WPF,
    weighted=True,
)
def _wpf(setup: Setup) -> Learner:
    return setup.learner(setup.weighted())


@method(
    "averaging",
    "the same particles, unweighted",
    True,
    label="Averaging particles",
    style=AVERAGING,
)
def _averaging(setup: Setup) -> Learner:
    particles = setup.ensemble(setup.settings.particles)
    return setup.learner(ol.AveragingParticles(particles, setup.optimizer(particles)))


@dataclass(frozen=True)
class BootstrapSettings(Config):
    """Settings of the bootstrap particle filter."""

    perturbation: Number = 0.01
    """Standard deviation of the bootstrap filter's perturbations."""


@method(
    "bootstrap",
    "resample and perturb, no gradients",
    particles=True,
    label="Baseline particle filter",
    style=BOOTSTRAP,
    config=BootstrapSettings,
)
def _bootstrap(setup: Setup) -> Learner:
    particles = setup.ensemble(setup.settings.particles)
    own = setup.config(BootstrapSettings)
    return setup.learner(
        ol.BootstrapParticleFilter(particles, perturbation=own.perturbation, variant="paper")
    )


@method(
    "gd", "gradient descent, one network", label="Gradient descent", style=Style("#000000", "s")
)
def _gd(setup: Setup) -> Learner:
    return setup.learner(setup.descent())


@method("adam", "Adam, one network (a control)", label="Adam", style=Style("#000000", "D"))
def _adam(setup: Setup) -> Learner:
    return setup.learner(setup.descent("adam"))


BuildConsolidation = Callable[["Setup", "ol.Ensemble", Any, float], "Consolidation"]


def register_consolidation(
    name: str,
    title: str,
    build: BuildConsolidation,
    *,
    config: type[Any],
    strengths: Mapping[str, float],
    label: str = "",
    style: Style | None = None,
    tuned: tuple[bool, ...] = (False, True),
) -> None:
    """Register four methods: one network and particles, the literature's strength and a tuned one.

    Args:
        build: maps (setup, particles, settings in `config`, strength) to the consolidation.
        config: has fields NAME_strength and NAME_tuned with the default None. For a quadratic
            penalty it may have NAME_step (see `PenaltyStep`).
        strengths: the literature's, by scenario ("domain", "task", "class"), or by benchmark and
            scenario ("splitcifar100-domain").
        tuned: which of the two pairs to register.
    """
    for is_tuned in tuned:
        own, own_label, key, other = name, label or name, f"{name}_strength", f"{name}_tuned"
        how = "strength swept on validation data" if is_tuned else "the literature's strength"
        if is_tuned:
            own, own_label, key, other = f"{name}-tuned", f"{own_label}, tuned", other, key
        needs = key if is_tuned else None
        common: Any = {"style": style, "config": config, "ignores": (other,), "needs": needs}

        def learner(setup: Setup, filter: GradientFilter, key: str = key) -> Learner:
            own = setup.config(config)
            strength = getattr(own, key)
            if strength is None:
                kind = setup.scenario.kind
                strength = strengths.get(f"{setup.scenario.name}-{kind}", strengths[kind])
            consolidation = build(setup, filter.particles, own, strength)
            closed = CLOSED[getattr(own, f"{name}_step", "auto")]
            return setup.learner(filter, consolidation=consolidation, closed=closed)

        method(own, f"{title}, {how}, one network", label=own_label, **common)(
            lambda setup, learner=learner: learner(setup, setup.descent())
        )
        over = f"{title}, {how}, over weighted particles"
        weighted = method(
            f"{own}+wpf",
            over,
            True,
            label=f"{own_label} + WPF",
            base=own,
            weighted=True,
            **common,
        )
        weighted(lambda setup, learner=learner: learner(setup, setup.weighted()))


# How steps include a quadratic penalty, see `GradientFilter.register`
PenaltyStep = Literal["auto", "closed", "gradient"]
CLOSED = {"auto": None, "closed": True, "gradient": False}

# The literature's strengths, by scenario: van de Ven et al. (2022), on SplitMNIST and on CIFAR-100
STRENGTHS = {
    "ewc": {"task": 1e5, "domain": 1e10, "class": 1e9}
    | {"splitcifar100-task": 1e3, "splitcifar100-domain": 1e3, "splitcifar100-class": 100.0},
    "si": {"task": 10.0, "domain": 5e4, "class": 5e3}
    | {"splitcifar100-task": 100.0, "splitcifar100-domain": 500.0, "splitcifar100-class": 5.0},
    "lwf": {"task": 1.0, "domain": 1.0, "class": 1.0},
}


@dataclass(frozen=True)
class EWCSettings(Config):
    """Settings of elastic weight consolidation."""

    ewc_mode: Literal["separate", "online"] = "separate"
    """EWC with one penalty per past task ("separate") or one running penalty ("online")."""
    fisher: Literal["exact", "sampled", "empirical"] = "exact"
    """Fisher information: "exact", "sampled" or "empirical"."""
    fisher_samples: Count | None = 500
    """Samples of a task for the Fisher information; None: all."""
    ewc_step: PenaltyStep = "auto"
    """EWC's steps: "closed" (stable at any strength), by the penalty's "gradient"; "auto": closed
    with SGD, by the gradient with Adam, for which the literature's strengths are meant."""
    ewc_strength: Number | None = None
    """EWC's lambda; None: the literature's for benchmark and scenario."""
    ewc_tuned: Number | None = None
    """EWC's lambda found on validation data, for the method ewc-tuned."""


def ewc(setup: Setup, particles: ol.Ensemble, own: Any, strength: float, **more: Any) -> ol.EWC:
    """EWC with the settings that the supervised and the ProcGen benchmarks have in common."""
    more |= {"fisher": own.fisher, "fisher_samples": own.fisher_samples, "mode": own.ewc_mode}
    return ol.EWC(particles, strength, **more)


@dataclass(frozen=True)
class LwFSettings(Config):
    """Settings of learning without forgetting."""

    lwf_temperature: Positive = 2.0
    """LwF's temperature."""
    lwf_strength: Number | None = None
    """LwF's factor; None: 1."""
    lwf_tuned: Number | None = None
    """LwF's factor found on validation data, for the method lwf-tuned."""


def _lwf(setup: Setup, particles: ol.Ensemble, own: LwFSettings, strength: float) -> ol.LwF:
    return ol.LwF(particles, strength, temperature=own.lwf_temperature)


@dataclass(frozen=True)
class SISettings(Config):
    """Settings of synaptic intelligence."""

    si_xi: Positive = 0.1
    """SI's damping."""
    si_step: PenaltyStep = "auto"
    """SI's steps: "closed" (stable at any strength), by the penalty's "gradient"; "auto": closed
    with SGD, by the gradient with Adam, for which the literature's strengths are meant."""
    si_strength: Number | None = None
    """SI's c; None: the literature's for benchmark and scenario."""
    si_tuned: Number | None = None
    """SI's c found on validation data, for the method si-tuned."""


def _si(setup: Setup, particles: ol.Ensemble, own: SISettings, strength: float) -> ol.SI:
    return ol.SI(particles, strength, xi=own.si_xi)


CONSOLIDATIONS: tuple[tuple[str, str, BuildConsolidation, type[Any], str, Style], ...] = (
    ("ewc", "elastic weight consolidation", ewc, EWCSettings, "EWC", Style("#0072B2", "^")),
    ("lwf", "learning without forgetting", _lwf, LwFSettings, "LwF", Style("#009E73", "v")),
    ("si", "synaptic intelligence", _si, SISettings, "SI", Style("#CC79A7", "P")),
)
for _tuned in (False, True):
    for _name, _title, _build, _config, _label, _style in CONSOLIDATIONS:
        _common: Any = {"config": _config, "strengths": STRENGTHS[_name], "tuned": (_tuned,)}
        register_consolidation(_name, _title, _build, label=_label, style=_style, **_common)


@dataclass(frozen=True)
class ReplaySettings(Config):
    """Settings of experience replay."""

    replay_buffer: Size = 200
    """Samples that experience replay keeps."""


@method(
    "er",
    "experience replay, one network (a control)",
    label="Experience replay",
    style=Style("#56B4E9", "<"),
    config=ReplaySettings,
)
def _er(setup: Setup) -> Learner:
    from .learners import Reservoir

    seed = setup.settings.seed_of_batches(setup.seed)
    replay = Reservoir(setup.config(ReplaySettings).replay_buffer, seed)
    return setup.learner(setup.descent(), replay=replay)


@dataclass(frozen=True)
class KeptSettings(Config):
    """Settings of training on kept samples."""

    kept_share: Positive = 1 / 16
    """Share of the samples that is kept, chosen by their hash."""
    kept_epochs: Count = 20
    """Passes of Adam over the kept samples, from the start, at the end of every task."""


@method(
    "kept",
    "one network, trained anew on samples kept by their hash; no task order",
    label="Kept samples",
    style=Style("#56B4E9", "h"),
    config=KeptSettings,
    ignores=("lr", "optimizer", "schedule"),
)
def _kept(setup: Setup) -> KeptLearner:
    from .learners import KeptLearner

    own = setup.config(KeptSettings)
    return KeptLearner(
        setup.scenario,
        lambda: setup.descent("adam"),
        share=own.kept_share,
        epochs=own.kept_epochs,
        batch_size=setup.settings.batch_size,
    )


@method(
    "joint",
    "all tasks at once, one network",
    label="Joint training",
    style=Style("#56B4E9", ">"),
    joint=True,
)
def _joint(setup: Setup) -> Learner:
    return setup.learner(setup.descent(), joint=True)


@dataclass(frozen=True)
class ExactSettings(Config):
    """Settings of the exact filter."""

    rb_map: Literal["auto", "relu", "convolution", "leaves", "lite0", "lite1", "lite2"] = "auto"
    """Features of the exact filter: random "relu", "convolution", dead "leaves", or random ReLUs on
    a frozen EfficientNet ("lite0", ...); "auto" is "leaves" for images, else "relu"."""
    rb_features: Size = 2048
    """M, the number of features of each map of the exact filter."""
    rb_particles: Size = 8
    """The number of maps of the exact filter."""
    rb_weights: Literal["uniform", "evidence"] = "uniform"
    """How the exact head weighs its maps: "uniform" or "evidence"."""
    rb_block: Size = 4096
    """Samples gathered before they are added; this changes the speed only."""


@method(
    "rb",
    "exact filter: Gaussian heads on fixed features; the order has no effect",
    particles=True,
    slow=True,
    label="Exact filter",
    style=Style("#7A5C00", "h"),
    config=ExactSettings,
    ignores=("lr", "particles"),
)
def _rb(setup: Setup) -> ExactLearner:
    from .learners.exact import ExactLearner, backbone_features, feature_map

    own = setup.config(ExactSettings)
    # nothing is trained, so images are not augmented
    scenario = setup.scenario.mapped(backbone_features(own.rb_map))
    make_map = feature_map(own.rb_map, scenario.input_shape, own.rb_features)
    maps = setup.initial(make_map, own.rb_particles)
    maps.chunk_size = setup.settings.chunk_size
    classes = scenario.outputs if scenario.kind == "class" else scenario.classes_per_task
    filter = ol.ExactHead(maps, weights=own.rb_weights, classes=classes)
    return ExactLearner(scenario, filter, own.rb_block)
