"""What the classifier answers: quality, decisions, features, scales."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.sparse import csr_matrix
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import OneHotEncoder
from tests.estimators.helpers import FIXED, same_answers, shuffled
from torch import nn

from orderless import ExactClassifier, ExactRegressor


@pytest.mark.parametrize("features", ["relu", "linear"])
def test_iris_is_learned(iris, features: str) -> None:
    X, y = shuffled(*iris, seed=0)
    model = ExactClassifier(features, random_state=0).fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > {"relu": 0.88, "linear": 0.75}[features]
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert_allclose(model.predict_proba(X).sum(1), 1.0)


def test_decisions_agree_with_probabilities(iris) -> None:
    X, y = iris
    three = ExactClassifier(**FIXED).fit(X, y)
    np.testing.assert_array_equal(
        three.decision_function(X).argmax(1), three.predict_proba(X).argmax(1)
    )
    assert_allclose(np.exp(three.predict_log_proba(X)), three.predict_proba(X))
    two = ExactClassifier(**FIXED).fit(X[y != "setosa"], y[y != "setosa"])
    assert np.array_equal(two.decision_function(X) > 0, two.predict(X) == two.classes_[1])


def test_random_features_grow_with_the_input() -> None:
    y = np.arange(6) % 2
    for width, features in ((3, 1024), (300, 1200)):
        X = np.random.default_rng(0).normal(size=(6, width))
        assert ExactClassifier().fit(X, y).head_.sums.features == features


def test_linear_features_are_linear_regression_on_the_inputs() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(300, 5)) * [1, 2, 3, 4, 5]
    y = X @ draw.normal(size=5) + 3.0 + 0.1 * draw.normal(size=300)
    expected = LinearRegression().fit(X, y).predict(X)
    # with so little noise the ridge is nearly 0; inputs and targets lie on grids
    assert_allclose(ExactRegressor("linear").fit(X, y).predict(X), expected, atol=5e-3)


def test_a_module_of_features_is_given_the_rows_as_they_are() -> None:
    draw = np.random.default_rng(0)
    X = 5.0 + draw.normal(size=(100, 4))
    y = (X[:, 0] > 5.0).astype(int)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
    model = ExactClassifier(module).fit(X, y)
    assert model.input_scale_ == 1.0 and model.score(X, y) > 0.9
    stream = ExactClassifier(module)
    for rows in np.split(draw.permutation(100), 7 * np.arange(1, 14)):
        stream.partial_fit(X[rows], y[rows])
    assert same_answers(stream, model, X)
    with pytest.raises(ValueError, match="different feature maps"):
        model + ExactClassifier(nn.Sequential(nn.Linear(4, 16), nn.ReLU())).fit(X, y)


@pytest.mark.parametrize("size", [1e-170, 1e-150, 1e150, 1e155])
def test_columns_of_any_size_are_scaled(size: float) -> None:
    X = np.random.default_rng(0).normal(size=(200, 4))
    y = (X[:, 0] > 0).astype(int)
    expected = ExactClassifier(n_features=64, random_state=0).fit(X, y).predict(X)
    found = ExactClassifier(n_features=64, random_state=0).fit(X * size, y).predict(X * size)
    assert (found == expected).mean() > 0.98


def test_single_and_double_precision_give_the_same_labels(iris) -> None:
    X, y = iris
    single, double = (
        ExactClassifier(n_features=64, random_state=0).fit(X.astype(kind), y).predict(X)
        for kind in (np.float32, np.float64)
    )
    assert (single == double).mean() > 0.98


def test_sparse_input_is_learned_as_the_same_array() -> None:
    X = np.arange(60)[:, None] % np.array([[2, 3, 5]])
    y = X[:, 0] + X[:, 1] > 1
    sparse = OneHotEncoder().fit_transform(X)
    a = ExactClassifier(n_features=32, random_state=0).fit(sparse, y)
    b = ExactClassifier(n_features=32, random_state=0).fit(sparse.toarray(), y)
    assert np.array_equal(a.predict_proba(sparse), b.predict_proba(sparse.toarray()))
    values = ExactRegressor("linear").fit(csr_matrix(X), X[:, 2])
    assert_allclose(values.predict(csr_matrix(X)), X[:, 2], atol=0.1)


def test_partial_fit_after_fit_keeps_the_scale(iris) -> None:
    X, y = iris
    model = ExactClassifier(n_features=32, random_state=0).fit(3 + X, y)
    scale = model.input_scale_
    model.partial_fit(4 + X[:30], y[:30])
    assert model.input_scale_ is scale and model.head_.samples == 180
