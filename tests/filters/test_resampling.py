"""The four resamplers: unbiased, and as regular as they promise."""

import pytest
import torch

from orderless.filters.bootstrap import SCHEMES

WEIGHTS = torch.tensor([0.0, 0.05, 0.41, 0.0, 0.3, 0.14, 0.1, 0.0], dtype=torch.float64)


def counts(scheme: str, weights: torch.Tensor, draws: int) -> torch.Tensor:
    """How often each particle was chosen, `[draws, N]`."""
    n, generator = len(weights), torch.Generator().manual_seed(0)
    uniforms = torch.rand(draws, n, generator=generator).clamp(1e-7, 1 - 1e-7)
    chosen = [SCHEMES[scheme](weights, u) for u in uniforms]
    return torch.stack([torch.bincount(c, minlength=n) for c in chosen]).double()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_particle_is_drawn_n_times_its_weight_on_average(scheme: str) -> None:
    drawn = counts(scheme, WEIGHTS, 4000)
    assert (drawn.sum(1) == len(WEIGHTS)).all()
    error = 4.5 * drawn.std(0) / 4000**0.5 + 1e-9  # four and a half standard errors
    assert ((drawn.mean(0) - 8 * WEIGHTS).abs() <= error).all()
    assert (drawn[:, WEIGHTS == 0] == 0).all()


def test_systematic_counts_are_the_floor_or_the_ceiling() -> None:
    drawn, expected = counts("systematic", WEIGHTS, 1000), 8 * WEIGHTS
    assert ((drawn == expected.floor()) | (drawn == expected.ceil())).all()
    assert (drawn.std(0)[WEIGHTS > 0] > 0).all()


def test_residual_counts_are_at_least_the_floor() -> None:
    drawn = counts("residual", WEIGHTS, 1000)
    assert (drawn >= (8 * WEIGHTS).floor()).all()


@pytest.mark.parametrize("scheme", ["systematic", "stratified", "residual"])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 49, 100])
def test_equal_weights_keep_every_particle_once(scheme: str, n: int) -> None:
    """Also where n * (1/n) is a bit below 1."""
    weights = torch.full((n,), 1.0 / n, dtype=torch.float64).log().exp()
    assert (counts(scheme, weights, 20) == 1).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("winner", [0, 3, 4])
def test_one_weight_takes_all(scheme: str, winner: int) -> None:
    weights = torch.zeros(5, dtype=torch.float64)
    weights[winner] = 1.0
    assert (counts(scheme, weights, 50)[:, winner] == 5).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_last_particle_is_not_drawn_without_weight(scheme: str) -> None:
    """float32 rounds the largest uniforms to 1."""
    weights = torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64)
    assert 2 not in SCHEMES[scheme](weights, torch.ones(3))
