"""A mistake is a sentence, and leaves an estimator as it was."""

from __future__ import annotations

import numpy as np
import pytest

from orderless import ExactClassifier, ExactRegressor

WRONG = {
    "features": (
        {"features": "relus"},
        "features must be 'relu', 'linear' or a module, got 'relus'",
    ),
    "none": ({"n_features": 0}, "n_features must be a whole number of at least 1, got 0"),
    "a fraction": ({"n_features": 2.5}, "n_features must be a whole .* got 2.5"),
    "a text": ({"n_features": "8"}, "n_features must be a whole .* got '8'"),
    "useless": ({"features": "linear", "n_features": 8}, "n_features=8 needs features='relu'"),
    "no scale": ({"input_scale": 0.0}, "input_scale must be positive"),
    "two scales": ({"input_scale": [1, 2]}, "one per column"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parameters_are_named(iris, name: str) -> None:
    options, words = WRONG[name]
    for learn in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=words):
            getattr(ExactClassifier(**options), learn)(*iris)


def test_wrong_data_is_named(iris) -> None:
    X, y = iris
    model = ExactClassifier(n_features=8).fit(X, y)
    for rows, words in ((X[:0], "0 sample"), (X[0], "Reshape your data")):
        with pytest.raises(ValueError, match=words):
            model.predict(rows)
    with pytest.raises(ValueError, match="target_scale"):
        ExactRegressor().partial_fit(X, 1e6 + X[:, 0])
    with pytest.raises(ValueError, match=r"labels of \['setosa', .* got 'daisy'"):
        model.forget(X[:1], ["daisy"])


@pytest.mark.parametrize(("features", "what"), [("relu", "inputs"), ("linear", "features")])
def test_inputs_that_are_clipped_or_lost_give_a_warning_that_names_the_scale(
    iris, features: str, what: str
) -> None:
    X, y = iris
    for size, words in ((100.0, "are clipped"), (1e-6, "rounding takes")):
        advice = f"{what} .*{words}.*set input_mean and input_scale"
        with pytest.warns(UserWarning, match=advice):
            ExactClassifier(features).partial_fit(size * X, y)


def test_a_call_that_fails_leaves_a_fitted_estimator_as_it_was() -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    model = ExactClassifier(n_features=16, random_state=0).fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="sample_weight"):
        model.partial_fit(X, y + 5, sample_weight=np.full(20, 0.3))
    state = model.state_dict()
    state["learned"]["n_features_in_"] = 7
    with pytest.raises(ValueError):
        model.load_state_dict(state)
    assert model.classes_.tolist() == [0, 1] and model.n_features_in_ == 2
    assert np.array_equal(model.predict_proba(X), before)
