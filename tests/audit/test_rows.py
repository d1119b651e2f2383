"""Audits of scikit-learn estimators: rows in random orders, and groups one after another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_blobs, make_classification
from sklearn.linear_model import LinearRegression, SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import orderless as ol

X, y = make_classification(240, 6, n_informative=4, random_state=0)
DAY = np.repeat(["mon", "tue", "wed"], 80)


class FirstRows(ClassifierMixin, BaseEstimator):
    """Predicts by the mean of the first rows: nothing but the order of the rows matters."""

    seen: list[np.ndarray] = []

    def fit(self, X, y):
        self.seen.append(X.copy())
        self.classes_ = np.unique(y)
        self.limit_ = X[:10, 0].mean()
        return self

    def predict(self, X):
        self.seen.append(X.copy())
        return self.classes_[(X[:, 0] > self.limit_).astype(int)]


class Constant(FirstRows):
    def predict(self, X):
        return np.full(len(X), self.classes_[0])


def test_an_estimator_that_looks_at_the_first_rows_is_found_out() -> None:
    found = ol.order_sensitivity(FirstRows(), X, y, orders=6, seeds=2)
    assert found.name == "FirstRows" and found.ignores_seed
    assert found.verdict == "sensitive" and found.scores.shape == (2, 6, 1)


def test_rows_held_out_are_the_same_in_every_order_and_never_learned() -> None:
    FirstRows.seen.clear()
    ol.order_sensitivity(FirstRows(), X, y, orders=3, seeds=2)
    fits, tests = FirstRows.seen[::2], FirstRows.seen[1::2]
    assert len(fits) == 6 and all(np.array_equal(test, tests[0]) for test in tests)
    for rows in fits:
        together = np.concatenate([rows, tests[0]])
        assert np.array_equal(np.sort(together, axis=0), np.sort(X, axis=0))
    first = [np.flatnonzero((row == X).all(axis=1))[0] for row in fits[0]]
    assert first == sorted(first)  # the first order is that of the data
    assert not np.array_equal(fits[0], fits[1]) and np.array_equal(fits[1], fits[4])


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.coo_matrix, pd.DataFrame])
def test_counts_do_not_depend_on_the_order_of_rows(form) -> None:
    counts = form(np.floor(np.abs(X) * 4))
    assert ol.order_sensitivity(MultinomialNB(), counts, y, orders=4, seeds=2).verdict == "none"


def test_groups_are_learned_one_after_another_where_the_estimator_can() -> None:
    sgd = SGDClassifier(random_state=1)
    found = ol.order_sensitivity(sgd, X, y, groups=DAY, seeds=2)
    assert found.tasks == ["mon", "tue", "wed"] and len(found.orders) == 6
    assert found.orders[0] == "mon > tue > wed"
    splits = {}
    for day in found.tasks:
        training, test = train_test_split(np.flatnonzero(day == DAY), random_state=0)
        splits[day] = np.sort(training), np.sort(test)
    for day in found.orders[4].split(" > "):
        rows, _ = splits[day]
        sgd.partial_fit(X[rows], y[rows], classes=[0, 1])
    scores = [sgd.score(X[rows], y[rows]) for _, rows in splits.values()]
    assert found.scores[1, 4] == pytest.approx(scores)


def test_an_estimator_without_partial_fit_is_fitted_to_the_groups_in_turn() -> None:
    found = ol.order_sensitivity(FirstRows(), X, y, groups=DAY, seeds=2)
    assert found.verdict == "sensitive" and found.scores.shape == (2, 6, 3)


def test_seeds_reach_the_steps_of_a_pipeline_and_labels_may_be_words() -> None:
    words = np.where(X[:, 0] > 0, "yes", "no")
    sgd = make_pipeline(StandardScaler(), SGDClassifier(max_iter=5, tol=None))
    found = ol.order_sensitivity(sgd, X, words, orders=3, seeds=3)
    assert not found.ignores_seed and found.parts.average > 0.8
    assert 0.5 < found.chance < 0.8


def test_values_are_scored_by_r_squared() -> None:
    target = X @ np.arange(6.0)
    found = ol.order_sensitivity(LinearRegression(), X, target, orders=3, seeds=2)
    assert found.score == "R^2" and found.parts.average == pytest.approx(1.0)
    assert "R^2          1.000" in str(found) and "%" not in str(found)


@pytest.mark.parametrize(
    "changes",
    [{"y": y[:10]}, {"groups": np.zeros(240)}, {"groups": np.arange(240)}, {"groups": [1, 2]}],
)
def test_what_cannot_be_audited_is_refused(changes) -> None:
    options = {"y": y, "seeds": 2, **changes}
    with pytest.raises(ValueError, match=r"samples|tasks or groups"):
        ol.order_sensitivity(FirstRows(), X, **options)


def test_equal_labels_of_other_scores_are_no_equal_bits() -> None:
    """Three blobs far apart: every order predicts the same labels, by other weights."""
    blobs, classes = make_blobs(300, centers=3, cluster_std=0.6, random_state=1)
    sgd = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01)
    found = ol.order_sensitivity(sgd, blobs, classes, orders=5, seeds=2)
    assert found.order_variance == 0 and found.verdict == "not shown"
    hinge = SGDClassifier(learning_rate="constant", eta0=0.01)
    pair = classes < 2  # of two classes decision_function gives one number a row
    assert ol.order_sensitivity(hinge, blobs[pair], classes[pair], seeds=2).verdict != "none"


def test_who_gives_labels_alone_is_compared_by_labels() -> None:
    counts = np.floor(np.abs(X) * 4)
    labels = ol.order_sensitivity(Constant(), counts, y, orders=3, seeds=2)
    assert "every order gave the same predicted labels" in str(labels)
    bayes = ol.order_sensitivity(MultinomialNB(), counts, y, orders=3, seeds=2)
    assert "every order gave the same bits" in str(bayes)
