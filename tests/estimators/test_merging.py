"""An algebra of data: estimators are added, subtracted, and forget."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from tests.estimators.helpers import FIXED, same_answers

from orderless import ExactClassifier, ExactRegressor


@pytest.mark.parametrize("texts", [False, True])
def test_two_sites_with_other_classes_merge_by_label(iris, texts: bool) -> None:
    X, y = iris
    y = y if texts else np.searchsorted(np.unique(y), y) * 10
    here, there = y != np.unique(y)[0], y != np.unique(y)[1]
    a, b = (ExactClassifier(**FIXED).fit(X[rows], y[rows]) for rows in (here, there))
    twice = np.concatenate([X[here], X[there]]), np.concatenate([y[here], y[there]])
    whole = ExactClassifier(**FIXED).fit(*twice)
    assert same_answers(a + b, whole, X) and same_answers(sum([b, a]), whole, X)
    assert list(a.classes_) == list(np.unique(y[here]))  # both stay as they were
    assert np.array_equal(((a + b) - b).predict(X[here]), a.predict(X[here]))


def test_regressors_merge_and_forget() -> None:
    X, y = load_diabetes(return_X_y=True)
    options = {"n_features": 32, "random_state": 0, "input_scale": 0.05}
    options |= {"target_mean": 150.0, "target_scale": 75.0}
    a, b = (ExactRegressor(**options).fit(X[i::2], y[i::2]) for i in range(2))
    whole = ExactRegressor(**options).fit(X, y)
    assert np.array_equal((a + b).predict(X), whole.predict(X))
    assert np.array_equal(whole.forget(X[1::2], y[1::2]).predict(X), a.predict(X))


def test_what_does_not_fit_is_not_merged(iris) -> None:
    X, y = iris
    a = ExactClassifier(**FIXED).fit(X, y)
    numbers = np.searchsorted(np.unique(y), y)
    others = [
        ({"random_state": 1}, y, "the same random_state"),
        ({"input_scale": 2.0}, y, "input_scale differs"),
        ({}, numbers, "labels must be all numbers, all texts"),
        ({}, numbers > 0, "or all truth values"),
    ]
    for changes, labels, words in others:
        b = ExactClassifier(**{**FIXED, **changes}).fit(X, labels)
        with pytest.raises(ValueError, match=words):
            a + b
    by_data = [
        ExactClassifier(n_features=32, random_state=0).fit(X[i::2], y[i::2]) for i in range(2)
    ]
    with pytest.raises(ValueError, match="instead of taking it from the data of each"):
        by_data[0] + by_data[1]


def test_heads_of_estimators_merge_only_where_labels_and_scales_mean_the_same(iris) -> None:
    X, y = iris
    first, _, third = np.unique(y)
    a, b = (ExactClassifier(**FIXED).fit(X[rows], y[rows]) for rows in (y != third, y != first))
    with pytest.raises(ValueError, match="add the estimators that these heads belong to"):
        a.head_ + b.head_  # 'setosa' and 'versicolor' would share a column
    whole = ExactClassifier(**FIXED).fit(X, y)
    late = a.partial_fit(X[y == third], y[y == third])  # has learned a label since
    assert (late.head_ + whole.head_).samples == 300


def test_what_a_classifier_forgets_was_never_there(iris) -> None:
    X, y = iris
    gone = np.arange(150) % 3 == 0
    model = ExactClassifier(**FIXED).fit(X, y).forget(X[gone], y[gone])
    assert same_answers(model, ExactClassifier(**FIXED).fit(X[~gone], y[~gone]), X)
    scaled = ExactClassifier(n_features=32, random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match="keep a trace of forgotten samples"):
        scaled.forget(X[gone], y[gone])


def test_estimators_of_columns_in_another_order_are_not_added() -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    y = np.arange(20) % 2
    fitted = [ExactClassifier(**FIXED).fit(part, y) for part in (X, X[["b", "a"]])]
    for combine in (operator.add, operator.sub):
        with pytest.raises(ValueError, match=r"\['a', 'b'\] here and \['b', 'a'\] there"):
            combine(*fitted)
    unnamed = ExactClassifier(**FIXED).fit(X.to_numpy(), y)
    assert (fitted[0] + unnamed).head_.samples == 40
