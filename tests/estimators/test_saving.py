"""An estimator that was saved, loaded, pickled or exported is the one it was."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from tests.estimators.helpers import same_answers
from torch import nn

import orderless as ol
from orderless import ExactClassifier, ExactRegressor


def small() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2


@pytest.mark.parametrize("features", ["relu", "linear"])
def test_a_saved_or_pickled_estimator_learns_on_as_the_original(iris, features, tmp_path) -> None:
    X, y = iris
    model = ExactClassifier(features, random_state=0).fit(X, y)
    ol.save(tmp_path / "model", model)
    again = ol.load(tmp_path / "model", into=ExactClassifier())
    copy = pickle.loads(pickle.dumps(model))
    for each in (model, again, copy):
        each.partial_fit(X[:20], y[:20])
    assert same_answers(model, again, X) and again.get_params() == model.get_params()
    assert same_answers(model, copy, X) and clone(model).get_params() == model.get_params()
    values = ExactRegressor(features).fit(X, X[:, 0])
    ol.save(tmp_path / "values", values)
    other = ol.load(tmp_path / "values", into=ExactRegressor())
    answers = [each.predict(X, return_std=True) for each in (values, other)]
    assert all(np.array_equal(*pair) for pair in zip(*answers, strict=True))
    with pytest.raises(ValueError, match="of a ExactClassifier, not a ExactRegressor"):
        ol.load(tmp_path / "model", into=ExactRegressor())


def test_a_module_of_features_is_the_loaders_own(tmp_path) -> None:
    X, y = small()
    module = nn.Sequential(nn.Linear(2, 8), nn.ReLU())
    model = ExactClassifier(module).fit(X, y)
    ol.save(tmp_path / "model", model)
    again = ol.load(tmp_path / "model", into=ExactClassifier(module))
    assert same_answers(model, again, X)
    with pytest.raises(ValueError, match="another model"):
        ol.load(tmp_path / "model", into=ExactClassifier(nn.Linear(2, 3)))


@pytest.mark.parametrize(
    "options",
    [
        {"class_prior": np.array([0.2, 0.8])},
        {"input_scale": np.array([1.0, 2.0]), "n_features": np.int64(16)},
    ],
)
def test_parameters_of_numpy_types_are_used_saved_and_loaded(options, tmp_path) -> None:
    X, y = small()
    model = ExactClassifier(**{"n_features": 16, "random_state": 0, **options}).fit(X, y)
    ol.save(tmp_path / "model", model)
    again = ol.load(tmp_path / "model", into=ExactClassifier())
    assert same_answers(model.partial_fit(X, y), again.partial_fit(X, y), X)


def test_the_device_and_the_columns_are_those_of_the_loader_and_of_the_file(tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = small()
    state = ExactClassifier(n_features=16).fit(X, y).state_dict()
    state["parameters"]["device"] = "cuda"
    again = ExactClassifier(n_features=16).fit(pandas.DataFrame(X, columns=["a", "b"]), y)
    again.load_state_dict(state)
    assert again.device == "cpu" and again.predict(X).shape == (20,)
    assert not hasattr(again, "feature_names_in_")


@pytest.mark.parametrize("features", ["relu", "linear", nn.Linear(3, 8)])
def test_an_exported_estimator_takes_raw_inputs(features) -> None:
    X = 100.0 + 50.0 * np.random.default_rng(0).normal(size=(200, 3))
    labels = np.where(X[:, 0] > X[:, 1], "first", "second")
    scales = {} if isinstance(features, str) else {"input_mean": 100.0, "input_scale": 50.0}
    classifier = ExactClassifier(features, random_state=0, **scales).fit(X, labels)
    regressor = ExactRegressor(features, random_state=0, **scales).fit(X, X[:, 2])
    for model, expected in (
        (classifier, classifier.predict_proba(X)),
        (regressor, regressor.predict(X)),
    ):
        found = model.export()(torch.from_numpy(X))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
