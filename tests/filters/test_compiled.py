"""What a recorded step depends on besides its tensors; tests/cuda has the recordings themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.filters.oracles import batches, cross_entropy, mlp

import orderless as ol
from orderless.consolidation import EWC
from orderless.filters.compiled import settings_of
from orderless_lab.rl import LineageBootstrapFilter

X, Y = next(batches(1))
GRADIENT = (ol.WeightedParticleFilter, ol.AveragingParticles, ol.GradientDescent)


def make(kind: Any) -> Any:
    particles = ol.Ensemble(mlp, 1 if kind is ol.GradientDescent else 3)
    if issubclass(kind, ol.BootstrapParticleFilter):
        return kind(particles, perturbation=0.1)
    return kind(particles, torch.optim.SGD(particles.parameters(), 0.1))


@pytest.mark.parametrize("kind", [*GRADIENT, ol.BootstrapParticleFilter, LineageBootstrapFilter])
def test_steps_leave_the_settings_as_they_are(kind: Any) -> None:
    """Otherwise every step would be recorded anew."""
    pf = make(kind)
    before = settings_of(pf)
    hash(before)

    def loss() -> torch.Tensor:
        return cross_entropy(pf.particles(X), Y)

    for _ in range(3):
        pf.step(loss)
    assert settings_of(pf) == before


@pytest.mark.parametrize("kind", GRADIENT)
def test_a_new_consolidation_or_limit_is_another_setting(kind: Any) -> None:
    pf = make(kind)
    seen = {settings_of(pf)}
    pf.max_grad_norm = 0.5
    seen.add(settings_of(pf))
    pf.register(EWC(pf.particles, 1.0))
    seen.add(settings_of(pf))
    pf.register(EWC(pf.particles, 1.0))
    seen.add(settings_of(pf))
    assert len(seen) == 4


def test_a_consolidation_in_the_place_of_another_is_another_setting() -> None:
    """Also where Python gives the new one the old one's place in memory."""
    pf, seen = make(ol.WeightedParticleFilter), set()
    for _ in range(5):
        pf.consolidations.clear()
        pf.register(EWC(pf.particles, 1.0))
        seen.add(settings_of(pf))
    assert len(seen) == 5


def test_another_perturbation_is_another_setting() -> None:
    pf = make(ol.BootstrapParticleFilter)
    before = settings_of(pf)
    pf.perturbation = make(ol.BootstrapParticleFilter).perturbation
    assert settings_of(pf) == before
    pf.perturbation = ol.BootstrapParticleFilter(pf.particles, perturbation=0.2).perturbation
    assert settings_of(pf) != before
