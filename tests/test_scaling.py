"""`ExactScaler` against fractions, and without an order."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import orderless as ol

SIZES = [1.0, 1e-170, 1e155, 1e-320, 1e308]


def table(size: float = 1.0) -> np.ndarray:
    draw = np.random.default_rng(0)
    X = draw.normal(3.0, 2.0, size=(200, 3)) * (size / 10)
    X[:, 1] = draw.lognormal(0, 5, size=200)  # sums of these do round
    X[:, 2] = 0.1
    return X


@pytest.mark.parametrize("size", SIZES)
def test_mean_and_scale_are_those_of_fractions(size: float) -> None:
    X = table(size)
    scaler = ol.ExactScaler().add(X)
    for column, mean, scale in zip(X.T, scaler.mean, scaler.scale, strict=True):
        values = [Fraction(v) for v in column.tolist()]
        exact = sum(values) / 200
        assert mean == float(exact)
        variance = sum((v - exact) ** 2 for v in values) / 200
        if variance:
            assert abs(Fraction(scale.item()) ** 2 / variance - 1) < 1e-14 or size == 1e-320
        else:
            assert scale == 1.0
    np.testing.assert_array_equal(scaler.low, X.min(axis=0))
    np.testing.assert_array_equal(scaler.high, X.max(axis=0))


def test_no_order_no_batching_and_no_division_changes_a_bit() -> None:
    X = table()
    whole = ol.ExactScaler().add(X)
    mixed = X[np.random.default_rng(1).permutation(200)]
    parts = [ol.ExactScaler().add(part) for part in np.split(mixed, [3, 4, 150])]
    for other in (ol.ExactScaler().add(mixed), sum(parts[1:], start=parts[0])):
        assert np.array_equal(other.mean, whole.mean)
        assert np.array_equal(other.scale, whole.scale)
    assert np.array_equal((ol.ExactScaler() + whole).mean, whole.mean)


def test_many_rows_are_summed_in_portions() -> None:
    X = np.random.default_rng(0).normal(size=(10_000, 2))
    scaler = ol.ExactScaler().add(X)
    np.testing.assert_allclose(scaler.mean, X.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(scaler.transform(X).std(axis=0), 1.0)


def test_a_whole_weight_is_repetition() -> None:
    X = table()
    times = np.random.default_rng(0).integers(0, 17, 200)
    weighted = ol.ExactScaler().add(X, times)
    repeated = ol.ExactScaler().add(np.repeat(X, times, axis=0))
    assert np.array_equal(weighted.mean, repeated.mean)
    assert np.array_equal(weighted.scale, repeated.scale)
    halves = ol.ExactScaler().add(X, times / 16)
    assert np.array_equal(halves.scale, repeated.scale)


ONE = ol.ExactScaler().add([[1.0]])
MISTAKES = {
    "no row": (lambda: ol.ExactScaler().mean, "at least one row"),
    "NaN": (lambda: ol.ExactScaler().add([[np.nan]]), "finite numbers"),
    "no table": (lambda: ol.ExactScaler().add([1.0, 2.0]), r"got shape \[2\]"),
    "more columns": (lambda: ONE.add([[1.0, 2.0]]), "2 columns cannot be added to 1"),
    "a sum": (
        lambda: ONE + ol.ExactScaler().add([[1.0, 2.0]]),
        "2 columns cannot be added to 1",
    ),
    **{
        f"weights {weights}": (
            lambda weights=weights: ol.ExactScaler().add([[1.0], [2.0]], weights),
            "multiples of 1/16",
        )
        for weights in ([0.3, 1.0], [1.0], [17.0, 1.0], [-1.0, 1.0])
    },
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_sentences(name):
    mistake, words = MISTAKES[name]
    with pytest.raises(ValueError, match=words):
        mistake()
