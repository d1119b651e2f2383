"""What the classifier answers: quality, decisions, precision, streams."""

from __future__ import annotations

import numpy as np
import pytest
from tests.estimators.helpers import FIXED, shuffled

from orderless import ParticleClassifier


@pytest.mark.parametrize("method", ["rb", "wpf", pytest.param("averaging", marks=pytest.mark.slow)])
def test_iris_is_learned_by_every_method(iris, method: str) -> None:
    X, y = shuffled(*iris, seed=0)
    model = ParticleClassifier(method, n_particles=3, epochs=60, random_state=0)
    model.fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > 0.88
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (150, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)


def test_decisions_agree_with_probabilities(iris) -> None:
    X, y = iris
    three = ParticleClassifier(**FIXED).fit(X, y)
    np.testing.assert_array_equal(
        three.decision_function(X).argmax(1), three.predict_proba(X).argmax(1)
    )
    np.testing.assert_allclose(np.exp(three.predict_log_proba(X)), three.predict_proba(X))
    two = ParticleClassifier(**FIXED).fit(X[y != "setosa"], y[y != "setosa"])
    assert np.array_equal(two.decision_function(X) > 0, two.predict(X) == two.classes_[1])


def test_single_and_double_precision_give_the_same_labels(iris) -> None:
    X, y = iris
    single, double = (
        ParticleClassifier(n_features=64, random_state=0).fit(X.astype(kind), y).predict(X)
        for kind in (np.float32, np.float64)
    )
    assert (single == double).mean() > 0.98


def test_a_short_batch_counts_for_what_is_in_it(iris) -> None:
    X, y = iris
    weights = []
    for rows in (X[:1], np.repeat(X[:1], 32, axis=0)):
        model = ParticleClassifier("wpf", n_particles=1, lr=1e-3, random_state=0)
        for _ in range(32 // len(rows)):
            model.partial_fit(rows, y[: len(rows)], classes=np.unique(y))
        weights.append(next(model.filter_.particles.parameters()).detach().clone())
    start = ParticleClassifier("wpf", n_particles=1, random_state=0, epochs=1, lr=1e-9)
    start = next(start.fit(X, y).filter_.particles.parameters()).detach()
    # 32 small steps and a large one differ in second order of the learning rate
    assert (weights[0] - weights[1]).norm() < 0.05 * (weights[1] - start).norm()


def test_partial_fit_after_fit_keeps_the_scale(iris) -> None:
    X, y = iris
    model = ParticleClassifier(n_features=32, random_state=0).fit(3 + X, y)
    scale = model.input_scale_
    model.partial_fit(4 + X[:30], y[:30])
    assert model.input_scale_ is scale and model.filter_.samples == 180
