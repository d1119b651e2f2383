"""An estimator that was saved, loaded or pickled is the one it was."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from tests.estimators.helpers import same_answers

import orderless as ol
from orderless import ParticleClassifier, ParticleRegressor


@pytest.mark.parametrize("method", ["rb", "wpf"])
def test_a_saved_estimator_learns_on_as_the_original(iris, method: str, tmp_path) -> None:
    X, y = iris
    model = ParticleClassifier(method, n_features=32, n_particles=2, epochs=2, random_state=0)
    ol.save(tmp_path / "model", model.fit(X, y))
    again = ol.load(tmp_path / "model", into=ParticleClassifier())
    for each in (model, again):
        each.partial_fit(X[:20], y[:20])
    assert same_answers(model, again, X) and again.get_params() == model.get_params()
    values = ParticleRegressor(method, n_particles=2, epochs=2).fit(X, X[:, 0])
    ol.save(tmp_path / "values", values)
    other = ol.load(tmp_path / "values", into=ParticleRegressor())
    answers = [each.predict(X, return_std=True) for each in (values, other)]
    assert all(np.array_equal(*pair) for pair in zip(*answers, strict=True))
    with pytest.raises(ValueError, match="of a ParticleClassifier, not a ParticleRegressor"):
        ol.load(tmp_path / "model", into=ParticleRegressor())


@pytest.mark.parametrize("method", ["rb", "wpf"])
def test_a_pickled_model_learns_on_as_the_original(iris, method: str) -> None:
    X, y = iris
    model = ParticleClassifier(method, n_features=32, random_state=0).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    for each in (model, copy):
        each.partial_fit(X[:20], y[:20])
    assert np.array_equal(model.predict_proba(X), copy.predict_proba(X))
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize(
    "options",
    [
        {"class_weight": {np.int64(0): np.float64(2.0), np.int64(1): 1.0}},
        {"class_prior": np.array([0.2, 0.8])},
        {"input_scale": np.array([1.0, 2.0]), "n_features": np.int64(16)},
        {"method": "wpf", "hidden": (np.int64(8),), "epochs": 1},
    ],
)
def test_parameters_of_numpy_types_are_used_saved_and_loaded(options, tmp_path) -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    model = ParticleClassifier(**{"n_features": 16, "random_state": 0, **options}).fit(X, y)
    ol.save(tmp_path / "model", model)
    again = ol.load(tmp_path / "model", into=ParticleClassifier())
    assert same_answers(model.partial_fit(X, y), again.partial_fit(X, y), X)


def test_an_estimator_is_loaded_onto_the_device_that_was_asked_for() -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    state = ParticleClassifier(n_features=16).fit(X, y).state_dict()
    again = ParticleClassifier()
    again.load_state_dict({**state, "parameters": {**state["parameters"], "device": "cuda"}})
    assert again.device == "cpu" and again.predict(X).shape == (20,)


def test_a_loaded_estimator_has_no_names_of_columns_from_before(tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    ol.save(tmp_path / "model", ParticleClassifier(n_features=16).fit(X, y))
    other = ParticleClassifier(n_features=16).fit(pandas.DataFrame(X, columns=["a", "b"]), y)
    assert not hasattr(ol.load(tmp_path / "model", into=other), "feature_names_in_")
