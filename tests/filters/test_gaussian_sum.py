"""The Gaussian-sum filter: exact for quadratic losses in every order; without H the paper's."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import multivariate_normal
from torch import Tensor, nn

import orderless as ol
from orderless.filters.gaussian_sum import GaussianSumFilter

SIGMA2, DIMENSIONS = 0.4, 5


class Point(nn.Module):
    """A network that is its parameters: outputs x itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(2, dtype=torch.float64))
        self.second = nn.Parameter(torch.randn(DIMENSIONS - 2, 1, dtype=torch.float64))

    def forward(self) -> Tensor:
        return torch.cat([self.first, self.second.flatten()])


def quadratics(kind: str) -> list[tuple[Tensor, Tensor, float]]:
    """Three losses x^T A x / 2 + b^T x + c."""
    generator = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    matrices = []
    for _ in range(3):
        if kind == "axes":
            matrices.append(torch.diag(draw(DIMENSIONS).square()))
        elif kind == "convex":
            root = draw(DIMENSIONS, 2)  # of low rank, as from single observations
            matrices.append(root @ root.T)
        else:  # saddles, shallower than the prior
            root = draw(DIMENSIONS, DIMENSIONS)
            matrices.append(0.1 * (root + root.T))
    return [(matrix, draw(DIMENSIONS), float(draw(()))) for matrix in matrices]


def closed_form(
    start: Tensor, losses: list[tuple[Tensor, Tensor, float]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Posterior mean [N, d], precision [d, d] and log normaliser [N], all at once."""
    eye = torch.eye(DIMENSIONS, dtype=torch.float64) / SIGMA2
    precision = eye + sum(a for a, _, _ in losses)
    linear = sum(b for _, b, _ in losses)
    mean = torch.linalg.solve(precision, (start / SIGMA2 - linear).T).T
    constant = sum(c for _, _, c in losses)
    log_evidence = (
        -constant
        - start.square().sum(1) / (2 * SIGMA2)
        + ((mean @ precision) * mean).sum(1) / 2
        - (torch.logdet(precision) - torch.logdet(eye)) / 2
    )
    return mean, precision, log_evidence


@pytest.mark.parametrize(
    ("curvature", "kind"),
    [("full", "convex"), ("full", "saddles"), ("full", "axes"), ("diagonal", "axes")],
)
def test_quadratic_losses_give_the_exact_posterior_in_every_order(
    curvature: str, kind: str
) -> None:
    losses = quadratics(kind)
    for order in itertools.permutations(range(3)):
        particles = ol.Ensemble(Point, n=4, seed=1)
        start = particles().detach()
        pf = GaussianSumFilter(particles, sigma2=SIGMA2, curvature=curvature)
        for index in order:
            a, b, c = losses[index]

            def closure(
                a: Tensor = a, b: Tensor = b, c: float = c, particles: ol.Ensemble = particles
            ) -> Tensor:
                x = particles()
                return ((x @ a) * x).sum(1) / 2 + x @ b + c

            pf.step(closure)
        mean, precision, log_evidence = closed_form(start, losses)
        assert torch.allclose(particles().detach(), mean, atol=1e-10)
        weights = log_evidence - log_evidence.logsumexp(0)
        assert torch.allclose(pf.log_weights, weights, atol=1e-10)
        total = log_evidence.logsumexp(0) - math.log(4)
        assert torch.allclose(pf.log_evidence, total, atol=1e-10)
        expected = precision.diagonal() if curvature == "diagonal" else precision
        assert torch.allclose(pf.precision, expected.expand_as(pf.precision), atol=1e-10)


def linear_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(6, 1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("with_outputs", [False, True])
def test_bayesian_linear_regression_has_its_textbook_evidence(with_outputs: bool) -> None:
    """One particle: the evidence is a normal density of the targets."""
    x, y = linear_data()
    particles = ol.Ensemble(lambda: nn.Linear(3, 1, bias=False).double(), n=1)
    start = particles.weight.detach()[0, 0].clone()
    pf = GaussianSumFilter(particles, sigma2=SIGMA2, curvature="full", link="identity")
    for rows in torch.arange(6).split(2):

        def closure(rows: Tensor = rows) -> object:
            outputs = particles(x[rows])
            residuals = (outputs - y[rows]).flatten(1)
            losses = residuals.square().sum(1) / 2 + len(rows) / 2 * math.log(2 * math.pi)
            return (losses, outputs) if with_outputs else losses

        pf.step(closure)  # type: ignore[arg-type]
    covariance = np.eye(6) + SIGMA2 * (x @ x.T).numpy()
    expected = multivariate_normal.logpdf(y[:, 0].numpy(), (x @ start).numpy(), covariance)
    assert pf.log_evidence.item() == pytest.approx(expected, abs=1e-10)


def test_without_curvature_it_is_the_weighted_filter_with_linearized_weights() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    loss = ol.per_particle(F.cross_entropy)
    ensembles = [ol.Ensemble(lambda: mlp().double(), n=3, seed=2) for _ in range(2)]
    ours = GaussianSumFilter(ensembles[0], sigma2=0.1, curvature="none")
    optimizer = torch.optim.SGD(ensembles[1].parameters(), lr=0.1)
    theirs = ol.WeightedParticleFilter(ensembles[1], optimizer, weighting="linearized")
    for rows in torch.arange(20).split(5):
        for pf, particles in zip((ours, theirs), ensembles, strict=True):
            pf.step(lambda p=particles, r=rows: loss(p(x[r]), y[r]))
    assert torch.allclose(ours.log_weights, theirs.log_weights, atol=1e-12)
    assert torch.allclose(ours.predict(x), theirs.predict(x), atol=1e-12)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def classification(particles: ol.Ensemble, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    outputs = particles(x)
    return ol.per_particle(lambda o, t: F.cross_entropy(o, t, reduction="sum"))(outputs, y), outputs


def gauss_newton_by_hand(module: nn.Module, x: Tensor) -> Tensor:
    """sum over samples of J^T (diag p - p p^T) J, one Jacobian at a time."""
    parameters = list(module.parameters())
    total: Tensor | float = 0.0
    for sample in x:
        outputs = module(sample.unsqueeze(0))[0]
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(o, parameters, retain_graph=True)])
            for o in outputs
        ]
        jacobian, p = torch.stack(rows), outputs.softmax(0).detach()
        total = total + jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    assert isinstance(total, Tensor)
    return total


def test_full_curvature_of_a_network_is_its_gauss_newton_matrix() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    particles = ol.Ensemble(lambda: mlp().double(), n=2)
    expected = [gauss_newton_by_hand(particles[i], x) for i in range(2)]
    pf = GaussianSumFilter(particles, sigma2=0.5, curvature="full")
    pf.step(lambda: classification(particles, x, y))  # type: ignore[arg-type,return-value]
    eye = torch.eye(len(expected[0]), dtype=torch.float64)
    for particle in range(2):
        assert torch.allclose(pf.precision[particle], 2 * eye + expected[particle], atol=1e-10)


def test_diagonal_probes_are_unbiased_and_never_negative() -> None:
    """400 probes: relative error of the trace about 1/sqrt(400) times a factor of order one."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    particles = ol.Ensemble(lambda: mlp().double(), n=2)
    expected = gauss_newton_by_hand(particles[0], x).diagonal()
    pf = GaussianSumFilter(particles, sigma2=0.5, curvature="diagonal", probes=400)
    pf.step(lambda: classification(particles, x, y))  # type: ignore[arg-type,return-value]
    found = pf.precision[0] - 2.0
    assert (found >= 0).all()
    assert found.sum().item() == pytest.approx(expected.sum().item(), rel=0.15)
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.98


@pytest.mark.parametrize("with_outputs", [False, True])
def test_a_network_learns_to_classify(with_outputs: bool) -> None:
    torch.manual_seed(0)
    y = torch.arange(240) % 3
    x = 2.0 * F.one_hot(y, 4).float() + 0.5 * torch.randn(240, 4)
    particles = ol.Ensemble(mlp, n=5)
    pf = GaussianSumFilter(particles, sigma2=0.5, curvature="diagonal")
    for rows in torch.randperm(240).split(8):

        def closure(rows: Tensor = rows) -> object:
            losses, outputs = classification(particles, x[rows], y[rows])
            return (losses, outputs) if with_outputs else losses

        pf.step(closure)  # type: ignore[arg-type]
    assert (pf.predict(x).argmax(1) == y).float().mean() > 0.9
    assert (pf.precision >= 2.0).all()


def test_a_particle_with_a_bad_loss_dies_and_keeps_everything() -> None:
    particles = ol.Ensemble(Point, n=3, seed=1)
    pf = GaussianSumFilter(particles, sigma2=SIGMA2, curvature="full")
    before, precision = particles().detach(), pf.precision.clone()
    spoil = torch.tensor([1.0, torch.nan, 1.0], dtype=torch.float64)
    info = pf.step(lambda: particles().square().sum(1) * spoil)
    assert info.alive.tolist() == [True, False, True]
    assert torch.equal(particles().detach()[1], before[1])
    assert torch.equal(pf.precision[1], precision[1])
    assert not torch.equal(particles().detach()[0], before[0])
    assert pf.weights[1] == 0 and pf.weights.sum().item() == pytest.approx(1.0)


def test_when_none_is_left_an_error_says_so_and_nothing_moved() -> None:
    particles = ol.Ensemble(Point, n=2, seed=1)
    pf = GaussianSumFilter(particles, sigma2=SIGMA2, curvature="diagonal")
    before = pf.state_dict()
    with pytest.raises(FloatingPointError, match="no particle is left"):
        pf.step(lambda: particles().square().sum(1) * torch.nan)
    after = pf.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in ("precision", "log_weights", "alive"))
    assert all(torch.equal(v, after["particles"][k]) for k, v in before["particles"].items())


def test_a_saved_filter_goes_on_as_if_nothing_had_happened(tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randint(3, (12,))
    ensembles = [ol.Ensemble(mlp, n=3, seed=4) for _ in range(2)]
    filters = [
        GaussianSumFilter(particles, sigma2=0.3, curvature="diagonal") for particles in ensembles
    ]
    filters[0].step(lambda: classification(ensembles[0], x[:6], y[:6]))  # type: ignore[arg-type,return-value]
    ol.save(tmp_path / "gs.safetensors", filters[0])
    ol.load(tmp_path / "gs.safetensors", into=filters[1])
    for pf, particles in zip(filters, ensembles, strict=True):
        pf.step(lambda p=particles: classification(p, x[6:], y[6:]))
    assert torch.equal(filters[0].precision, filters[1].precision)
    assert torch.equal(filters[0].predict(x), filters[1].predict(x))
    full = GaussianSumFilter(ol.Ensemble(mlp, n=3), sigma2=0.3, curvature="full")
    with pytest.raises(ValueError, match="another curvature"):
        full.load_state_dict(filters[0].state_dict())


@pytest.mark.parametrize("curvature", ["diagonal", "full"])
def test_what_is_frozen_is_chosen_before_the_filter_is_made(curvature: str) -> None:
    """Also if as many numbers are unfrozen, which would get the precision of others."""
    particles = ol.Ensemble(lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), 2)
    early, late = (particles.get_parameter(f"{layer}.bias") for layer in (0, 1))
    late.requires_grad_(False)
    pf = GaussianSumFilter(particles, sigma2=SIGMA2, curvature=curvature)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])

    def closure() -> Tensor:
        return ol.per_particle(F.cross_entropy)(particles(x), y)

    pf.step(closure)
    early.requires_grad_(False)
    with pytest.raises(ValueError, match="'0.bias' has been frozen since the filter was made"):
        pf.step(closure)
    late.requires_grad_(True)
    early.requires_grad_(True)
    with pytest.raises(ValueError, match="'1.bias' requires a gradient since the filter was made"):
        pf.step(closure)
    early.requires_grad_(False)
    with pytest.raises(ValueError, match="'0.bias' has been frozen"):
        pf.step(closure)
    early.requires_grad_(True)
    late.requires_grad_(False)
    pf.step(closure)
    assert int(pf.steps) == 2


def test_settings_that_make_no_sense_are_refused() -> None:
    particles = ol.Ensemble(mlp, n=2)
    with pytest.raises(ValueError, match="sigma2 must be positive"):
        GaussianSumFilter(particles, sigma2=0.0)
    with pytest.raises(ValueError, match="curvature must be"):
        GaussianSumFilter(particles, sigma2=1.0, curvature="block")
    big = ol.Ensemble(lambda: nn.Linear(100, 30), n=1)
    with pytest.raises(ValueError, match="at most 2000 of them, and this network has 3030"):
        GaussianSumFilter(big, sigma2=1.0, curvature="full")
    with pytest.raises(ValueError, match="no penalty"):
        pf = GaussianSumFilter(particles, sigma2=1.0, curvature="diagonal")
        pf.step(lambda: particles(torch.ones(1, 4)).sum((1, 2)), penalty=lambda: torch.zeros(2))
