"""What a recorded step depends on besides its tensors; tests/cuda has the recordings themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.filters.oracles import batches, cross_entropy, mlp

import orderless as ol
from orderless.consolidation import EWC

X, Y = next(batches(1))
GRADIENT = (ol.WeightedParticleFilter, ol.AveragingParticles, ol.GradientDescent)


def make(kind: Any) -> Any:
    particles = ol.Ensemble(mlp, 1 if kind is ol.GradientDescent else 3)
    if issubclass(kind, ol.BootstrapParticleFilter):
        return kind(particles, perturbation=0.1)
    return kind(particles, torch.optim.SGD(particles.parameters(), 0.1))


@pytest.mark.parametrize("kind", [*GRADIENT, ol.BootstrapParticleFilter])
def test_steps_leave_the_settings_as_they_are(kind: Any) -> None:
    """Otherwise every step would be recorded anew."""
    pf = make(kind)
    before = pf.recorded_settings()
    hash(before)

    def loss() -> torch.Tensor:
        return cross_entropy(pf.particles(X), Y)

    for _ in range(3):
        pf.step(loss)
    assert pf.recorded_settings() == before


@pytest.mark.parametrize("kind", GRADIENT)
def test_a_new_consolidation_or_limit_is_another_setting(kind: Any) -> None:
    pf = make(kind)
    seen = {pf.recorded_settings()}
    pf.max_grad_norm = 0.5
    seen.add(pf.recorded_settings())
    pf.register(EWC(pf.particles, 1.0))
    seen.add(pf.recorded_settings())
    ewc = EWC(pf.particles, 1.0)
    pf.register(ewc)
    seen.add(pf.recorded_settings())
    ewc.tasks += 1  # a recorded step without the penalty must not be replayed
    seen.add(pf.recorded_settings())
    assert len(seen) == 5


def test_a_weighting_may_be_a_plain_dataclass() -> None:
    """It is not hashable, and changes in place are seen."""

    @dataclass
    class Halves(ol.Weighting):
        factor: float = 0.5

        def __call__(self, step):
            return -self.factor * step.energy_before

    particles = ol.Ensemble(mlp, 3)
    optimizer = torch.optim.SGD(particles.parameters(), 0.1)
    pf = ol.GradientFilter(particles, optimizer, weighting=Halves())
    seen = {pf.recorded_settings()}
    pf.weighting.factor = 0.25
    seen.add(pf.recorded_settings())
    assert len(seen) == 2


def test_a_consolidation_in_the_place_of_another_is_another_setting() -> None:
    """Also where Python gives the new one the old one's place in memory."""
    pf, seen = make(ol.WeightedParticleFilter), set()
    for _ in range(5):
        pf.hooks.clear()
        pf.register(EWC(pf.particles, 1.0))
        seen.add(pf.recorded_settings())
    assert len(seen) == 5


def test_another_perturbation_is_another_setting() -> None:
    pf = make(ol.BootstrapParticleFilter)
    before = pf.recorded_settings()
    pf.perturbation = make(ol.BootstrapParticleFilter).perturbation
    assert pf.recorded_settings() == before
    pf.perturbation = ol.BootstrapParticleFilter(pf.particles, perturbation=0.2).perturbation
    assert pf.recorded_settings() != before
