"""No order and no batching changes the exact estimators."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from tests.estimators.helpers import FIXED, same_answers, shuffled

from orderless import ParticleClassifier, ParticleRegressor


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "evidence"])
def test_no_order_and_no_batching_changes_a_bit_of_the_exact_classifier(iris, weights) -> None:
    X, y = iris
    options = {"n_features": 32, "weights": weights, "random_state": 0, "input_scale": 1.0}
    whole = ParticleClassifier(**options).fit(X, y).predict_proba(X)
    for seed, size in ((0, 1), (1, 7), (2, 150)):
        model = ParticleClassifier(**options)
        mixed_X, mixed_y = shuffled(X, y, seed)
        for start in range(0, len(X), size):
            part = slice(start, start + size)
            model.partial_fit(mixed_X[part], mixed_y[part], classes=np.unique(y))
        assert np.array_equal(model.predict_proba(X), whole)
    by_class = ParticleClassifier(**options)
    for label in np.unique(y)[::-1]:
        by_class.partial_fit(X[y == label], y[y == label], classes=np.unique(y))
    assert np.array_equal(by_class.predict_proba(X), whole)


def test_no_order_changes_a_bit_of_the_exact_regressor() -> None:
    X, y = load_diabetes(return_X_y=True)
    options = {"n_features": 32, "random_state": 0, "input_scale": 0.05}
    options |= {"target_mean": 150.0, "target_scale": 75.0}
    mean, deviation = ParticleRegressor(**options).fit(X, y).predict(X, return_std=True)
    model = ParticleRegressor(**options)
    mixed_X, mixed_y = shuffled(X, y, 0)
    for start in range(0, len(X), 50):
        model.partial_fit(mixed_X[start : start + 50], mixed_y[start : start + 50])
    again = model.predict(X, return_std=True)
    assert np.array_equal(again[0], mean) and np.array_equal(again[1], deviation)


def test_fit_finds_a_scale_that_does_not_depend_on_the_order_of_the_rows() -> None:
    X = np.random.default_rng(0).lognormal(0, 5, size=(500, 3))  # sums of these do round
    y = (X[:, 0] > 1).astype(int)
    models = [
        ParticleClassifier(n_features=16, random_state=0).fit(*shuffled(X, y, seed))
        for seed in (0, 1)
    ]
    assert np.array_equal(models[0].input_scale_, models[1].input_scale_)
    assert np.array_equal(models[0].input_mean_, models[1].input_mean_)
    assert np.array_equal(models[0].predict_proba(X), models[1].predict_proba(X))


def test_gradient_methods_do_depend_on_the_order(iris) -> None:
    X, y = iris
    ways = [np.argsort(y), np.argsort(y)[::-1]]
    answers = [
        ParticleClassifier("wpf", n_particles=2, random_state=0)
        .partial_fit(X[rows], y[rows], classes=np.unique(y))
        .predict_proba(X)
        for rows in ways
    ]
    assert np.abs(answers[0] - answers[1]).max() > 0.01


def test_new_classes_may_come_in_a_stream(iris) -> None:
    X, y = iris
    model = ParticleClassifier(**FIXED)
    for label in np.unique(y)[::-1]:
        model.partial_fit(X[y == label], y[y == label])
    assert same_answers(model, ParticleClassifier(**FIXED).fit(X, y), X)
