"""Noise from a table is the noise of its draw."""

from __future__ import annotations

import pytest
import torch

from orderless_lab.rl.keyed import ACTION, ENTRIES, PARTICLE, ROWS, Gumbels, gumbel


@pytest.mark.parametrize(
    ("n", "count"),
    [(5, 3), (ENTRIES // 7, 2), pytest.param(2 * ENTRIES, 1, marks=pytest.mark.slow)],
)
def test_a_table_holds_what_every_draw_has_by_itself(n: int, count: int) -> None:
    """In sequence beyond a table's end, far away, and back."""
    source = Gumbels(7, n, count, ACTION, torch.device("cpu"))
    edge = (3 << 31) + 2**31 - 2  # a level's draws begin at multiples of 2^31
    for start, length in ((0, ROWS + 3 if n == 5 else 3), (edge, 4), (1, 2)):
        source.draw = start
        for draw in range(start, start + length):
            alone = gumbel(7, torch.tensor(draw), torch.arange(n), count, ACTION)
            assert torch.equal(source(), alone)
            assert source.draw == draw + 1


def test_the_noise_is_gumbels_and_streams_are_apart() -> None:
    """Its distribution function is exp(-exp(-x))."""
    one, other = (Gumbels(0, 4000, 10, s, torch.device("cpu"))() for s in (ACTION, PARTICLE))
    for x in (-1.0, 0.0, 1.5):
        share = torch.exp(-torch.exp(torch.tensor(-x)))
        assert float((one < x).float().mean()) == pytest.approx(float(share), abs=0.01)
    assert abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])) < 0.02
