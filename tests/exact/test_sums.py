"""Exact sums against Python's whole numbers, also where words end."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from tests.exact.toys import PROBE, Scaled, X, Y, blobs, fed, same_bits, same_sums

import orderless as ol
from orderless.exact.sums import WORD, Basis, ExactSum, HeadSums, sample_keys
from orderless.io import digest


def value_of(words: ExactSum, *index: int) -> Fraction:
    high = 0 if words.high is None else int(words.high[index])
    return Fraction(words.low[index].item()) + high * Fraction(WORD * words.unit)


@pytest.mark.parametrize("unit", [1.0, 2.0**-60])
def test_words_near_their_limits_add_up_as_python_integers_do(unit: float) -> None:
    one = torch.ones((), dtype=torch.float64) * unit
    half = WORD / 2
    lows = [0.0, 0.0625, -half, half - 0.0625, 1.0, -half + 0.0625, half / 3 // 1]
    highs = [0, 1, -1, 2**50, -(2**50)]
    numbers = [
        ExactSum(one * low, unit, torch.tensor(float(high), dtype=torch.float64))
        for low, high in itertools.product(lows, highs)
    ]
    for left, right, sign in itertools.product(numbers, numbers, (1, -1)):
        total = left.plus(right, sign)
        assert value_of(total) == value_of(left) + sign * value_of(right)
        assert -half * unit <= total.low < half * unit


def test_a_number_is_rounded_once_to_whole_units() -> None:
    values = torch.tensor([1.3, -2.5e-18, 3e11, -7.77e4], dtype=torch.float64)
    words = ExactSum.of(values, 2.0**-60)
    for place, value in enumerate(values.tolist()):
        assert value_of(words, place) == Fraction(round(Fraction(value) * 2**60), 2**60)


@pytest.mark.parametrize("value", [math.inf, math.nan, 2.0**41])
def test_what_two_words_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="sums must be finite and below 2.2e"):
        ExactSum.of(torch.tensor([1.0, value], dtype=torch.float64), 2.0**-60)


def near(value: float, high: int) -> ol.ExactHead:
    """A head whose sums are close to where words end."""
    head = ol.ExactHead("linear", feature_limit=2.0**16)
    head.update(torch.full((1, 2), 3.0), torch.tensor([0]))
    state = head.state_dict()
    gram = state["sums"]["gram"]["low"]
    gram[0, :2, :2] = torch.full((2, 2), value, dtype=torch.float64).tril()
    carry = torch.zeros_like(gram)
    carry[0, :2, :2] = torch.full((2, 2), float(high), dtype=torch.float64).tril()
    state["sums"]["gram"]["high"] = carry if high else None
    head.load_state_dict(state)
    return head


@pytest.mark.parametrize("high", [0, 1, 2**27])
def test_sums_near_both_limits_are_those_of_python_integers(high: int) -> None:
    """Features up to 2^16 in units of 1: a sample adds at most 2^32 to a sum."""
    head = near(WORD / 2 - 5.0, high)
    before = digest(head.state_dict())
    x = torch.tensor([[65536.0, -65535.0], [7.0, 65536.0], [1.0, 1.0]])
    y = torch.zeros(3, dtype=torch.long)
    weights = torch.tensor([16.0, 0.0625, 1.0], dtype=torch.float64)
    for rows in ([0], [1, 2]):
        head.update(x[rows], y[rows], sample_weight=weights[rows])
    start = Fraction(WORD / 2 - 5.0) + high * int(WORD)
    for i, j in ((0, 0), (1, 0), (1, 1)):
        terms = zip(x[:, i].tolist(), x[:, j].tolist(), weights.tolist(), strict=True)
        expected = start + sum(Fraction(a) * Fraction(b) * Fraction(w) for a, b, w in terms)
        assert value_of(head.sums.sums["gram"], 0, i, j) == expected
    twice = head + head
    assert value_of(twice.sums.sums["gram"], 0, 1, 1) == 2 * expected
    assert same_sums(twice - head, head)
    head.forget(x.flip(0), y, sample_weight=weights.flip(0))
    assert digest(head.state_dict()) == before


def test_tiles_of_a_large_matrix_are_the_sums_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randint(-9, 9, (1, 30, 1100), generator=generator).double()
    basis = Basis("", 2.0**16, 16, None, 0, False)
    sums = HeadSums.empty(basis, 1, 1100, torch.tensor([0]))
    sums.add(features, torch.zeros(30, dtype=torch.long), torch.ones(30, dtype=torch.float64))
    rows = torch.cat([features[0], torch.full((30, 1), 2.0**16)], 1).double()
    gram, moments = sums.of_map(0)
    assert torch.equal(gram, (rows.T @ rows).tril())
    assert torch.equal(moments[0], rows.sum(0))


@pytest.mark.filterwarnings("ignore:.*are clipped")
def test_features_beyond_the_limit_count_as_the_limit():
    heads = [ol.ExactHead(Scaled(1.0), feature_limit=2.0, calibration=0) for _ in range(2)]
    assert (X.abs() > 2.0).any()
    for head, x in zip(heads, (X, X.clamp(-2.0, 2.0)), strict=True):
        head.update(x, Y)
    assert same_sums(*heads)


def test_more_features_than_memory_are_refused() -> None:
    head = ol.ExactHead("linear")
    with pytest.raises(MemoryError, match="1000000 features need"):
        head.update(torch.zeros(1, 1_000_000), torch.zeros(1, dtype=torch.long))
    assert head.samples == 0


def test_equal_numbers_have_equal_keys_and_one_in_so_many_is_kept() -> None:
    x = torch.randint(0, 3, (40_000, 2, 6), generator=torch.Generator().manual_seed(0))
    keys = sample_keys(x)
    for same in (x.float(), x.byte(), x.flatten(1)):
        assert torch.equal(keys, sample_keys(same))
    assert torch.equal(sample_keys(-0.0 * x[:9].double()), sample_keys(0 * x[:9]))
    distinct = x.flatten(1).unique(dim=0)
    assert len(keys.unique()) == len(distinct)
    for share in (2, 16, 31):  # within four standard errors of 1 / share
        count = int((sample_keys(distinct) % share == 0).sum())
        expected = len(distinct) / share
        assert abs(count - expected) < 4 * expected**0.5


def test_copies_of_a_sample_are_kept_once_and_leave_when_the_last_one_does() -> None:
    x, y = blobs(40)
    head = fed(x, y, calibration=1)
    head.update(x[:5], (y[:5] + 1) % 10)  # the same inputs under another label
    head.update(x[:5], y[:5], sample_weight=torch.full((5,), 2.5))
    kept = head.sums.counted["kept"]
    assert len(kept.keys) == 45 and kept.weights.sum() == 57.5
    assert (kept.keys[1:, 0] >= kept.keys[:-1, 0]).all()
    head.forget(x[:5], y[:5], sample_weight=torch.full((5,), 3.5))
    head.forget(x[:5], (y[:5] + 1) % 10)
    assert same_bits(head, fed(x[5:], y[5:], calibration=1))


def test_empty_batches_and_bytes() -> None:
    head = fed(X, Y)
    body = ol.ExactHead(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)), classes=2)
    images = torch.randint(0, 9, (10, 1, 2, 2), dtype=torch.uint8)
    body.update(images, torch.arange(10) % 2)
    assert torch.equal(body.predict(images), body.predict(images.float()))
    for each, empty in ((head, PROBE[:0]), (body, images[:0])):
        assert each.predict(empty).shape == (0, len(each.columns))
        assert each.predictive(empty).mean.shape == (0, len(each.columns))
    with pytest.raises(ValueError, match=r"x has shape \[0, 12\] and y \[0\]"):
        head.update(X[:0], Y[:0])
