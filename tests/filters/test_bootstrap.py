"""Filters without gradients, against conjugate Gaussian problems with exact answers."""

import math

import pytest
import torch
from tests.common import (
    assert_identical,
    cross_entropy,
    dropout_mlp,
    mlp,
    normal,
    points,
    whole_state,
)
from torch import Tensor, nn

import orderless as ol
from orderless.ensemble.stacking import per_particle_view

NOISE = 0.5  # standard deviation of an observation y = x + noise
OBSERVATIONS = [0.9, 1.6, 1.1, 1.4]


class Location(nn.Module):
    """x ~ N(0, 1) in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(()))

    def forward(self, y: Tensor) -> Tensor:
        """-log N(y; x, NOISE^2)"""
        return (y - self.x).square() / (2 * NOISE**2) + math.log(NOISE * math.sqrt(2 * math.pi))


def kalman(process_noise: float, copies: int = 1) -> tuple[float, float, float]:
    """Posterior mean, variance and log-evidence; x drifts by process_noise before each y."""
    mean, variance, evidence = 0.0, 1.0, 0.0
    for y in OBSERVATIONS:
        variance += process_noise
        for _ in range(copies):
            total = variance + NOISE**2
            evidence -= 0.5 * ((y - mean) ** 2 / total + math.log(2 * math.pi * total))
            gain = variance / total
            mean, variance = mean + gain * (y - mean), (1 - gain) * variance
    return mean, variance, evidence


def run(n: int, variant: str, perturbation: float, seed: int = 0, **options) -> tuple:
    """Mean and variance of the weighted particles, and the log-evidence."""
    particles = ol.Ensemble(Location, n, seed=seed).double()
    pf = ol.BootstrapParticleFilter(
        particles, perturbation=perturbation, variant=variant, **options
    )
    for y in torch.tensor(OBSERVATIONS, dtype=torch.float64):
        pf.step(lambda y=y: particles(y))
    x, weights = particles.x.detach(), pf.weights
    mean = (weights * x).sum().item()
    return mean, (weights * (x - mean).square()).sum().item(), pf.log_evidence.item()


@pytest.mark.parametrize(
    ("noise", "resampling"),
    [
        *(
            pytest.param(0.0, scheme, marks=pytest.mark.slow)
            for scheme in ("systematic", "stratified", "multinomial", "residual")
        ),
        (0.4, "systematic"),
    ],
)
def test_sir_gives_the_posterior_and_evidence_of_the_kalman_filter(noise, resampling):
    """Without noise that of a conjugate prior, with noise that of a process with this noise."""
    mean, variance, evidence = run(4000, "sir", noise, resampling=resampling)
    exact_mean, exact_variance, exact_evidence = kalman(noise**2)
    # the posterior holds about a third of the prior's particles: errors of 1/sqrt(1300), twice
    assert mean == pytest.approx(exact_mean, abs=0.03)
    assert variance == pytest.approx(exact_variance, rel=0.12)
    assert evidence == pytest.approx(exact_evidence, abs=0.08)
    others = [kalman(0.0 if noise else 0.4**2), kalman(noise**2, copies=2)]
    assert all(abs(exact_variance - other[1]) > 0.3 * exact_variance for other in others)


@pytest.mark.slow
def test_the_papers_filter_counts_the_data_twice() -> None:
    """With vanishing noise it converges to p_0(x) e^{-2 sum L}, not to the posterior."""
    runs = [run(4000, "paper", 0.005, seed=seed)[:2] for seed in range(5)]
    mean, variance = (sum(column) / len(runs) for column in zip(*runs, strict=True))
    twice_mean, twice_variance, _ = kalman(0.0, copies=2)
    once_variance = kalman(0.0)[1]
    assert mean == pytest.approx(twice_mean, abs=0.02)
    assert variance == pytest.approx(twice_variance, rel=0.15)
    assert abs(variance - once_variance) > 0.3 * once_variance


def test_sir_resamples_when_the_ess_falls_below_the_threshold() -> None:
    for threshold, resampled in ((1.0, False), (64.0, True)):
        particles = ol.Ensemble(Location, 64).double()
        pf = ol.BootstrapParticleFilter(
            particles, perturbation=0.0, variant="sir", ess_threshold=threshold
        )
        pf.step(lambda p=particles: p(torch.tensor(1.0)))
        assert (len(particles.x.unique()) < 64) == resampled
        assert (abs(pf.ess.item() - 64) < 1e-9) == resampled


@pytest.mark.parametrize("variant", ["sir", "paper"])
def test_particles_are_resampled_as_wholes(variant):
    """All parameters and buffers of a particle go together."""
    particles = ol.Ensemble(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), 30)
    tensors = [*particles.parameters(), *particles.particle_buffers().values()]
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(per_particle_view(torch.arange(30), tensor).expand_as(tensor))
    pf = ol.BootstrapParticleFilter(particles, perturbation=0.0, variant=variant)
    energy = 9 * normal(30).abs()
    pf.step(lambda: energy)
    owner = particles.get_parameter("0.bias")[:, 0]
    assert len(owner.unique()) < 30
    for tensor in tensors:
        assert torch.equal(tensor, per_particle_view(owner, tensor).to(tensor).expand_as(tensor))


def test_noise_differs_between_steps_particles_and_tensors() -> None:
    particles = ol.Ensemble(mlp, 5)
    pf = ol.BootstrapParticleFilter(particles, perturbation=0.1, variant="sir", ess_threshold=0.0)
    moves = []
    for _ in range(2):
        before = particles.get_parameter("0.weight").detach().clone()
        pf.step(lambda: torch.zeros(5))
        moves.append((particles.get_parameter("0.weight").detach() - before).flatten(1))
    noise = torch.cat(moves) / 0.1
    assert noise.std().item() == pytest.approx(1, abs=0.1)
    correlations = torch.corrcoef(noise) - torch.eye(10)
    assert correlations.abs().max() < 0.6  # 48 numbers each: a standard error of 0.15


def test_frozen_parameters_are_not_perturbed() -> None:
    particles = ol.Ensemble(mlp, 4)
    particles.get_parameter("0.weight").requires_grad_(False)
    before = particles.get_parameter("0.weight").clone()
    pf = ol.BootstrapParticleFilter(particles, perturbation=0.1, variant="sir", ess_threshold=0.0)
    pf.step(lambda: torch.zeros(4))
    assert torch.equal(particles.get_parameter("0.weight"), before)


@pytest.mark.parametrize("variant", ["sir", "paper"])
def test_a_particle_without_a_finite_loss_is_replaced(variant: str) -> None:
    particles = points(8)
    options = {"ess_threshold": 8.0} if variant == "sir" else {}
    pf = ol.BootstrapParticleFilter(particles, perturbation=0.0, variant=variant, **options)
    with torch.no_grad():
        particles.x[3] = float("nan")
    pf.step(lambda: particles(torch.ones(3, dtype=torch.float64)).square())
    assert particles.x.isfinite().all()
    assert pf.weights.sum().item() == pytest.approx(1)


def test_weights_stay_numbers_when_only_the_weightless_have_finite_losses() -> None:
    particles = points(2)
    pf = ol.BootstrapParticleFilter(particles, perturbation=0.0, variant="sir", ess_threshold=0.0)
    nan = float("nan")
    pf.step(lambda: torch.tensor([1.0, nan]))
    before = whole_state(pf)
    with pytest.raises(FloatingPointError, match="no particle"):
        pf.step(lambda: torch.tensor([nan, 1.0]))
    assert_identical(whole_state(pf), before)


@pytest.mark.parametrize("variant", ["sir", "paper"])
@pytest.mark.parametrize("error", [KeyError, FloatingPointError])
def test_a_closure_that_fails_changes_nothing(variant, error):
    particles = ol.Ensemble(lambda: nn.Sequential(dropout_mlp(), nn.BatchNorm1d(3)), 4)
    pf = ol.BootstrapParticleFilter(particles, perturbation=0.1, variant=variant)
    x, y = torch.randn(5, 6), torch.arange(5) % 3
    pf.step(lambda: cross_entropy(particles(x), y))

    def closure() -> Tensor:
        losses = cross_entropy(particles(x), y)
        if error is KeyError:
            raise KeyError("no data")
        return losses * float("nan")

    before = whole_state(pf)
    with pytest.raises(error):
        pf.step(closure)
    assert_identical(whole_state(pf), before)
    pf.step(lambda: cross_entropy(particles(x), y))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"perturbation": -0.1}, "-0.1"),
        ({"perturbation": 0.1, "resampling": "magic"}, "'magic'"),
        ({"perturbation": 0.1, "variant": "book"}, "'book'"),
        ({"perturbation": 0.1, "variant": "paper", "ess_threshold": 3.0}, "ess_threshold"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ol.BootstrapParticleFilter(points(3), **options)


def test_a_penalty_is_refused() -> None:
    pf = ol.BootstrapParticleFilter(points(3), perturbation=0.1)
    with pytest.raises(ValueError, match="penalty"):
        pf.step(lambda: torch.zeros(3), penalty=lambda: torch.zeros(3))
