"""The methods of the supervised benchmarks."""

from __future__ import annotations

from collections.abc import Callable

from ..consolidation import EWC, SI, Consolidation, LwF
from ..filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GaussianSumFilter,
    RaoBlackwellizedFilter,
)
from ..filters.gradient import GradientFilter
from ..particles import Ensemble
from .learners import ExactLearner, GaussianSumLearner, Learner, Reservoir
from .learners.exact import feature_map
from .registry import method
from .setup import Setup

# ---------------------------------------------------------------------- particle methods


@method("wpf", "weighted particle filter", particles=True)
def _wpf(setup: Setup) -> Learner:
    return Learner(setup.scenario, setup.weighted())


@method("averaging", "the same particles, unweighted", particles=True)
def _averaging(setup: Setup) -> Learner:
    particles = setup.ensemble(setup.settings.particles)
    return Learner(setup.scenario, AveragingParticles(particles, setup.optimizer(particles)))


@method("bootstrap", "resample and perturb, no gradients", particles=True)
def _bootstrap(setup: Setup) -> Learner:
    s, particles = setup.settings, setup.ensemble(setup.settings.particles)
    return Learner(setup.scenario, BootstrapParticleFilter(particles, perturbation=s.perturbation))


@method("gsf", "Gaussian-sum filter, a precision per particle", particles=True, in_all=False)
def _gsf(setup: Setup) -> GaussianSumLearner:
    s, particles = setup.settings, setup.ensemble(setup.settings.particles)
    filter = GaussianSumFilter(
        particles, sigma2=s.gsf_sigma2, curvature=s.gsf_curvature, min_ess=s.min_ess
    )
    return GaussianSumLearner(setup.scenario, filter)


@method("rb", "exact Gaussian heads on random features; no order at all", particles=True, slow=True)
def _rb(setup: Setup) -> ExactLearner:
    s, scenario = setup.settings, setup.scenario
    make_map = feature_map(scenario.input_shape, s.rb_features)
    maps = setup.initial(make_map, s.rb_particles)
    maps.chunk_size = s.chunk_size
    classes = scenario.outputs if scenario.kind == "class" else scenario.classes_per_task
    filter = RaoBlackwellizedFilter(maps, weights=s.rb_weights, classes=classes)
    return ExactLearner(scenario, filter, s.rb_block)


# ---------------------------------------------------------------------- single networks


@method("gd", "gradient descent, one network")
def _gd(setup: Setup) -> Learner:
    return Learner(setup.scenario, setup.descent())


@method("adam", "Adam, one network (a control)")
def _adam(setup: Setup) -> Learner:
    return Learner(setup.scenario, setup.descent("adam"))


@method("er", "experience replay, one network (a control)")
def _er(setup: Setup) -> Learner:
    s = setup.settings
    replay = Reservoir(s.replay_buffer, s.seed_of_batches(setup.seed))
    return Learner(setup.scenario, setup.descent(), replay=replay)


@method("joint", "all tasks at once, one network (an upper bound)")
def _joint(setup: Setup) -> Learner:
    return Learner(setup.scenario, setup.descent(), joint=True)


# ---------------------------------------------------------------------- consolidation


def _ewc(setup: Setup, particles: Ensemble, strength: float) -> EWC:
    s = setup.settings
    return EWC(
        particles, strength, fisher=s.fisher, mode=s.ewc_mode, fisher_samples=s.fisher_samples
    )


def _si(setup: Setup, particles: Ensemble, strength: float) -> SI:
    return SI(particles, strength, xi=setup.settings.si_xi)


def _lwf(setup: Setup, particles: Ensemble, strength: float) -> LwF:
    return LwF(particles, strength, temperature=setup.settings.lwf_temperature)


def _register_consolidation(
    name: str, title: str, build: Callable[[Setup, Ensemble, float], Consolidation]
) -> None:
    """Four rows each: alone and over particles, at the literature's strength and at a tuned one."""

    def with_filter(filter: GradientFilter, setup: Setup, tuned: bool) -> Learner:
        settings = setup.settings
        strength = (
            settings.tuned_strength(name) if tuned else settings.strength(name, setup.scenario.kind)
        )
        consolidation = build(setup, filter.particles, strength)
        return Learner(setup.scenario, filter, consolidation=consolidation)

    for suffix, tuned in (("", False), ("-tuned", True)):
        how = "strength swept on validation data" if tuned else "the literature's strength"

        @method(f"{name}{suffix}", f"{title}, {how}, one network")
        def alone(setup: Setup, tuned: bool = tuned) -> Learner:
            return with_filter(setup.descent(), setup, tuned)

        @method(f"{name}{suffix}+wpf", f"{title}, {how}, over weighted particles", particles=True)
        def over_particles(setup: Setup, tuned: bool = tuned) -> Learner:
            return with_filter(setup.weighted(), setup, tuned)


_register_consolidation("ewc", "elastic weight consolidation", _ewc)
_register_consolidation("lwf", "learning without forgetting", _lwf)
_register_consolidation("si", "synaptic intelligence", _si)
