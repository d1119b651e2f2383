"""A mistake is a sentence, and leaves an estimator as it was."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris

import orderless as ol
from orderless import ParticleClassifier, ParticleRegressor


def test_mistakes_are_sentences(iris) -> None:
    X, y = iris
    cases = [
        (lambda: ParticleClassifier("gd").fit(X, y), "method must be one of"),
        (lambda: ParticleClassifier("gd").partial_fit(X, y), "method must be one of"),
        (lambda: ParticleClassifier(n_particles=0).fit(X, y), "n_particles must be at least 1"),
        (lambda: ParticleClassifier("wpf").partial_fit(X, y), "first call"),
        (
            lambda: ParticleClassifier("wpf").partial_fit(X, y, classes=["setosa"]),
            r"y must hold labels of \['setosa'\], got 'versicolor'",
        ),
        (lambda: ParticleClassifier("wpf", hidden=8).fit(X, y), "hidden must be a tuple"),
        (lambda: ParticleClassifier(n_features=8).fit(X, y).predict(X[:0]), "0 sample"),
        (lambda: ParticleClassifier(n_features=8).fit(X, y).predict(X[0]), "Reshape your data"),
        (lambda: ParticleClassifier(input_scale=0.0).fit(X, y), "input_scale must be positive"),
        (lambda: ParticleClassifier(input_scale=[1, 2]).fit(X, y), "one per column"),
        (lambda: ParticleRegressor().partial_fit(X, 1e6 + X[:, 0]), "target_scale"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()
    model = ParticleClassifier("wpf", n_particles=1).partial_fit(X, y, classes=np.unique(y))
    with pytest.raises(ValueError, match="must stay as in the first call"):
        model.partial_fit(X, y, classes=["a", "b"])
    with pytest.raises(ValueError, match="only estimators with method='rb' can forget"):
        model.forget(X, y)
    model = ParticleClassifier(n_features=8).partial_fit(X, y)
    with pytest.warns(UserWarning, match="clipped"):
        model.partial_fit(100 * X, y)


def test_a_warning_names_what_an_estimator_has():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(UserWarning, match="inputs are so small .*: set input_mean and input_scale"):
        ol.ParticleClassifier(n_features=16, input_scale=1e6).partial_fit(X, y)


def test_a_call_that_fails_leaves_a_fitted_estimator_as_it_was() -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    model = ParticleClassifier(n_features=16, random_state=0).fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="sample_weight"):
        model.partial_fit(X, y + 5, sample_weight=np.full(20, 0.3))
    with pytest.raises(ValueError, match="class_weight must not be negative"):
        model.set_params(class_weight={0: -1.0}).fit(np.zeros((4, 3)), [0, 1, 2, 3])
    state = {**model.state_dict(), "n_features_in_": 7}
    with pytest.raises(ValueError):
        model.load_state_dict(state)
    assert model.classes_.tolist() == [0, 1] and model.n_features_in_ == 2
    assert np.array_equal(model.predict_proba(X), before)
