"""Random numbers by coordinates: well distributed, independent, the same everywhere."""

import pytest
import torch
from scipy import stats

from orderless.ensemble import random


def keys(seed: int = 0, draw: int = 0, n: int = 1, stream: int = 0) -> torch.Tensor:
    return random.particle_keys(seed, torch.tensor(draw), torch.arange(n), stream)


def test_uniform_numbers_are_uniform() -> None:
    u = random.uniform(keys(n=20), (10_000,)).double()
    assert u.min() > 0
    assert u.max() < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-3
    for row in u[:5]:
        assert stats.kstest(row.numpy(), "uniform").pvalue > 1e-3


def test_normal_numbers_are_normal() -> None:
    z = random.normal(keys(n=20), (10_001,)).double()
    assert z.shape == (20, 10_001)
    assert z.mean().item() == pytest.approx(0, abs=0.01)
    assert z.var().item() == pytest.approx(1, abs=0.02)
    assert (z**4).mean().item() == pytest.approx(3, abs=0.1)
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-3
    assert z.isfinite().all()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    for function in (random.uniform, random.normal):
        assert function(keys(n=4), shape).shape == (4, *shape)
        assert function(keys(n=4)[0], shape).shape == shape


@pytest.mark.parametrize("axis", ["particle", "draw", "seed", "stream"])
def test_neighbours_are_uncorrelated(axis: str) -> None:
    """40 neighbours along each coordinate, 5000 numbers each."""
    if axis == "particle":
        all_keys = keys(n=40)
    else:
        all_keys = torch.cat([keys(**{axis: k}) for k in range(40)])
    assert len(all_keys.unique()) == 40
    for function in (random.uniform, random.normal):
        rows = function(all_keys, (5000,)).double()
        worst = (torch.corrcoef(rows) - torch.eye(40)).abs().max()
        assert worst < 5 / 5000**0.5  # five standard errors
        lagged = torch.corrcoef(torch.stack([rows[:, :-1].flatten(), rows[:, 1:].flatten()]))
        assert lagged[0, 1].abs() < 5 / rows.numel() ** 0.5


@pytest.mark.parametrize("seed", [-1, -2, 1 << 31, 1 << 32, (1 << 32) | 1, (1 << 63) - 1])
def test_every_seed_is_another_one(seed: int) -> None:
    for other in (0, 1, 2):
        assert not torch.equal(keys(seed, n=3), keys(other, n=3))


def test_late_draws_are_others_than_early_ones() -> None:
    for late in (1 << 31, 1 << 32, (1 << 32) + 5):
        for early in (0, 5):
            assert not torch.equal(keys(draw=late, n=3), keys(draw=early, n=3))


def test_the_numbers_are_the_same_alone_as_among_others_and_in_vmap() -> None:
    together = random.normal(keys(seed=3, draw=7, n=9), (4, 5))
    indices = torch.arange(9)
    draw = torch.tensor(7)
    for i in (0, 4, 8):
        alone = random.normal(random.particle_keys(3, draw, indices[i]), (4, 5))
        assert torch.equal(alone, together[i])
    mapped = torch.vmap(lambda i: random.normal(random.particle_keys(3, draw, i), (4, 5)))(indices)
    assert torch.equal(mapped, together)


def test_the_numbers_never_change() -> None:
    """Saved runs resume with them: a change of these values breaks old checkpoints."""
    assert keys(seed=1, draw=2, n=3, stream=4).tolist() == [-1514681659, 88851950, -1986990695]
    numbers = random.uniform(keys(seed=1, draw=2, n=1, stream=4), (3,))[0]
    assert (numbers * 2**25).tolist() == [6673995.0, 12031229.0, 1288701.0]
