"""Weights of samples and of classes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.estimators.helpers import FIXED, same_answers

import orderless as ol
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


def test_a_balanced_classifier_finds_the_rare_class() -> None:
    """As scikit-learn's own balanced ridge does, on the same features."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(2000, 2))
    X[:40] += 1.2
    y = np.where(np.arange(2000) < 40, "rare", "common")
    plain, balanced = (
        ExactClassifier(n_features=32, random_state=0, class_weight=weight).fit(X, y)
        for weight in (None, "balanced")
    )
    assert balanced.class_weight_ == {"common": 0.3125, "rare": 16.0}  # 1 : 49, in sixteenths
    rare = y == "rare"
    assert (plain.predict(X[rare]) == "rare").mean() < 0.2
    assert (balanced.predict(X[rare]) == "rare").mean() > 0.6
    with pytest.raises(ValueError, match="class_prior='uniform'"):
        balanced.partial_fit(X, y)
    options = {"n_features": 128, "random_state": 0, "class_prior": "uniform"}
    stream = ExactClassifier(**options)
    for rows in np.array_split(np.arange(2000), 7):
        stream.partial_fit(X[rows], y[rows])
    assert (stream.predict(X[rare]) == "rare").mean() > 0.5
    given = ExactClassifier(n_features=32, random_state=0, class_weight={"rare": 3.0})
    whole = ExactClassifier(n_features=32, random_state=0)
    given.fit(X, y), whole.fit(X, y, sample_weight=np.where(rare, 3, 1))
    assert given.head_.samples == whole.head_.samples == 1960 + 120


@pytest.mark.parametrize("weights", [{}, {0: 0.0}, {0: 0.0, 1: 64.0}])
def test_class_weights_are_rounded_to_sixteenths(weights) -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    model = ExactClassifier(n_features=16, class_weight=weights, random_state=0).fit(X, y)
    assert model.class_weight_ == {
        label: 1 / 16 if w == 0 else 16.0 for label, w in weights.items()
    }


def test_class_weights_beyond_16_are_relative_to_the_classes_they_do_not_name(tmp_path) -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 3
    part, whole = (
        ExactClassifier(**FIXED, class_weight=weights).fit(X, y)
        for weights in ({2: 64.0}, {0: 1.0, 1: 1.0, 2: 64.0})
    )
    assert same_answers(part, whole, X)
    ol.save(tmp_path / "model", part)
    loaded = ol.load(tmp_path / "model", into=ExactClassifier())
    loaded.partial_fit(X + 1.0, y).forget(X + 1.0, y)
    assert same_answers(loaded, whole, X)
    with pytest.raises(ValueError, match="class_weight is"):
        part + ExactClassifier(**FIXED, class_weight={2: 16.0}).fit(X, y)
