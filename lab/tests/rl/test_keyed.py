"""Noise from a table is the noise of its draw."""

from __future__ import annotations

import pytest
import torch

from orderless_lab.rl.keyed import ACTION, ENTRIES, PARTICLE, ROWS, Gumbels, gumbel

CPU = torch.device("cpu")


@pytest.mark.parametrize(("n", "count"), [(5, 3), (ENTRIES // 7, 2)])
def test_a_table_holds_what_every_draw_has_by_itself(n: int, count: int) -> None:
    """Beyond a table's end, where a level's draws begin (multiples of 2^31), and back."""
    noise = Gumbels(7, n, count, ACTION, CPU)
    for draw in (0, 1, ROWS - 1, ROWS, (3 << 31) - 1, 3 << 31, 1):
        alone = gumbel(7, torch.tensor(draw), torch.arange(n), count, ACTION)
        assert torch.equal(noise(draw), alone)


def test_the_noise_is_gumbels_and_streams_are_apart() -> None:
    """Its distribution function is exp(-exp(-x))."""
    one, other = (Gumbels(0, 4000, 10, stream, CPU)(0) for stream in (ACTION, PARTICLE))
    for x in (-1.0, 0.0, 1.5):
        share = torch.exp(-torch.exp(torch.tensor(-x)))
        assert float((one < x).float().mean()) == pytest.approx(float(share), abs=0.01)
    assert abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])) < 0.02
