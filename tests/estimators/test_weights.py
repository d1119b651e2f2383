"""Weights of samples, and the prior of classes."""

from __future__ import annotations

import numpy as np
import pytest

from orderless import ExactClassifier, ExactRegressor


@pytest.mark.parametrize("kind", [ExactClassifier, ExactRegressor])
def test_a_whole_weight_is_repetition_scales_included(iris, kind) -> None:
    X, y = iris
    y = y if kind is ExactClassifier else X[:, 0] + X[:, 1] ** 2
    times = np.random.default_rng(0).integers(0, 4, len(X))
    options = {"n_features": 32, "random_state": 0}
    weighted = kind(**options).fit(X, y, sample_weight=times)
    repeated = kind(**options).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    assert np.array_equal(weighted.input_scale_, repeated.input_scale_)
    assert np.array_equal(weighted.predict(X), repeated.predict(X))
    streamed = kind(**options).fit(X, y).partial_fit(X, y, sample_weight=np.full(150, 2.5))
    assert streamed.head_.samples == 150 * 3.5


def test_a_uniform_prior_finds_the_rare_class() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(2000, 2))
    X[:40] += 1.2
    y = np.where(np.arange(2000) < 40, "rare", "common")
    rare = y == "rare"
    shares = []
    for prior in (None, "uniform"):
        model = ExactClassifier(n_features=128, random_state=0, class_prior=prior).fit(X, y)
        shares.append((model.predict(X[rare]) == "rare").mean())
    assert shares[0] < 0.2 and shares[1] > 0.5
