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
    draw = np.random.default_rng(0)
    X = draw.normal(size=(2000, 2))
    X[:40] += 1.2
    y = np.where(np.arange(2000) < 40, "rare", "common")
    rare = y == "rare"

    def found(**options) -> float:
        model = ExactClassifier(n_features=128, random_state=0, **options).fit(X, y)
        return (model.predict(X[rare]) == "rare").mean()

    assert found() < 0.2
    assert found(class_weight="balanced") > 0.5 and found(class_prior="uniform") > 0.5
    balanced = ExactClassifier(n_features=8, class_weight="balanced").fit(X, y)
    assert balanced.class_weight_ == {"common": 0.3125, "rare": 16.0}  # 1 : 49, in sixteenths
    with pytest.raises(ValueError, match="class_prior='uniform'"):
        balanced.partial_fit(X, y)
    given = ExactClassifier(n_features=8, class_weight={"rare": 3.0}).fit(X, y)
    assert given.head_.samples == 1960 + 120


def test_class_weights_are_sixteenths_relative_to_the_classes_they_do_not_name(tmp_path) -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 3
    part, whole = (
        ExactClassifier(**FIXED, class_weight=weights).fit(X, y)
        for weights in ({1: 0.0, 2: 64.0}, {0: 1.0, 1: 0.0, 2: 64.0})
    )
    assert part.class_weight_ == {1: 1 / 16, 2: 16.0} and same_answers(part, whole, X)
    ol.save(tmp_path / "model", part)
    loaded = ol.load(tmp_path / "model", into=ExactClassifier())
    loaded.partial_fit(X + 1.0, y).forget(X + 1.0, y)
    assert same_answers(loaded, whole, X)
    with pytest.raises(ValueError, match="class_weight is"):
        part + ExactClassifier(**FIXED, class_weight={2: 16.0}).fit(X, y)
