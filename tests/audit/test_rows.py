"""Audits of scikit-learn estimators: rows in random orders, and groups one after another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_classification
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import orderless as ol

X, y = make_classification(240, 6, n_informative=4, random_state=0)


class FirstRows(ClassifierMixin, BaseEstimator):
    """Predicts by the mean of the first rows: nothing but the order of the rows matters."""

    def __init__(self, rows: int = 10) -> None:
        self.rows = rows

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.limit_ = X[: self.rows, 0].mean()
        return self

    def predict(self, X):
        return self.classes_[(X[:, 0] > self.limit_).astype(int)]


def test_an_estimator_that_looks_at_the_first_rows_is_found_out() -> None:
    found = ol.order_sensitivity(FirstRows(), X, y, orders=6, seeds=2)
    assert found.learner.name == "FirstRows" and found.learner.ignores_seed
    assert found.sensitive and found.learner.scores.shape == (2, 6, 1)


def test_rows_held_out_are_the_same_in_every_order_and_never_learned() -> None:
    seen = []

    class Watched(FirstRows):
        def fit(self, X, y):
            seen.append(X.copy())
            return super().fit(X, y)

        def predict(self, X):
            seen.append(X.copy())
            return super().predict(X)

    ol.order_sensitivity(Watched(), X, y, orders=3, seeds=2)
    fits = [rows for rows in seen if len(rows) == 180]
    tests = [rows for rows in seen if len(rows) == 60]
    assert all(np.array_equal(test, tests[0]) for test in tests)
    for rows in fits:
        together = np.concatenate([rows, tests[0]])
        assert np.array_equal(np.sort(together, axis=0), np.sort(X, axis=0))
    # the first order is that of the data
    first = [np.flatnonzero((row == X).all(axis=1))[0] for row in fits[0]]
    assert first == sorted(first) and not np.array_equal(fits[0], fits[2])


def test_counts_do_not_depend_on_the_order_of_rows_and_steps_do() -> None:
    counts = np.floor(np.abs(X) * 4)
    for form in (counts, scipy.sparse.csr_matrix(counts), pd.DataFrame(counts)):
        found = ol.order_sensitivity(MultinomialNB(), form, y, orders=4, seeds=2)
        assert found.learner.verdict == "none"
    sgd = SGDClassifier(shuffle=False, learning_rate="constant", eta0=1.0, max_iter=1, tol=None)
    found = ol.order_sensitivity(sgd, X, y, orders=6, seeds=2)
    assert found.learner.order_variance > 0 and found.learner.ignores_seed


def test_groups_are_learned_one_after_another_where_the_estimator_can() -> None:
    day = np.repeat(["mon", "tue", "wed"], 80)
    flipped = np.where(day == "wed", 1 - y, y)
    sgd = SGDClassifier(learning_rate="constant", eta0=1.0)
    found = ol.order_sensitivity(sgd, X, flipped, groups=day, seeds=2)
    assert found.tasks == ("mon", "tue", "wed") and len(found.orders) == 6
    assert found.order_names[0] == "mon > tue > wed"
    worst = int(found.learner.scores[:, :, 2].mean(axis=0).argmin())
    assert found.orders[worst][-1] != 2  # what contradicts the others is known if it was last
    alone = SGDClassifier(learning_rate="constant", eta0=1.0, random_state=1)
    held = found.orders[4]
    data = ol.audit.measure.RowData(sgd, X, flipped, day, 6, 0)
    for group in held:
        rows = data.blocks[group]
        alone.partial_fit(X[rows], flipped[rows], classes=[0, 1])
    scores = [alone.score(X[rows], flipped[rows]) for rows in data.tests]
    assert found.learner.scores[1, 4] == pytest.approx(scores)


def test_an_estimator_without_partial_fit_is_fitted_to_the_groups_in_turn() -> None:
    day = np.repeat([0, 1, 2, 3], 60)
    tree = ol.order_sensitivity(DecisionTreeClassifier(), X, y, groups=day, orders=4, seeds=2)
    assert tree.learner.scores.shape == (2, 4, 4)
    first = ol.order_sensitivity(FirstRows(), X, y, groups=day, orders=4, seeds=2)
    assert first.sensitive


def test_seeds_reach_the_steps_of_a_pipeline_and_labels_may_be_words() -> None:
    words = np.where(X[:, 0] > 0, "yes", "no")
    sgd = make_pipeline(StandardScaler(), SGDClassifier(max_iter=5, tol=None))
    found = ol.order_sensitivity(sgd, X, words, orders=3, seeds=3)
    assert not found.learner.ignores_seed and found.learner.parts.average > 0.8
    assert 0.5 < found.chance < 0.8


def test_values_are_scored_by_r_squared() -> None:
    target = X @ np.arange(6.0) + 0.1 * y
    found = ol.order_sensitivity(LinearRegression(), X, target, orders=3, seeds=2)
    assert found.score == "R^2" and found.learner.parts.average > 0.99


def test_others_run_beside_it_on_the_same_rows() -> None:
    others = {"logistic": LogisticRegression()}
    found = ol.order_sensitivity(FirstRows(), X, y, orders=4, seeds=2, compare=others)
    assert found["logistic"].parts.average > found["FirstRows"].parts.average


def test_two_audits_with_one_seed_run_the_same_orders() -> None:
    first, same, other = (
        ol.order_sensitivity(FirstRows(), X, y, orders=4, seeds=2, order_seed=seed)
        for seed in (0, 0, 1)
    )
    assert first.digest == same.digest != other.digest
    assert first.learner.bits == same.learner.bits


def test_a_stopped_audit_of_rows_goes_on(tmp_path) -> None:
    made = []

    class Counted(FirstRows):
        def fit(self, X, y):
            if len(made) == 3:
                raise KeyboardInterrupt
            made.append(1)
            return super().fit(X, y)

    with pytest.raises(KeyboardInterrupt):
        ol.order_sensitivity(Counted(), X, y, orders=3, seeds=2, out=tmp_path)
    made = [1] * 10
    ol.order_sensitivity(Counted(), X, y, orders=3, seeds=2, out=tmp_path)
    assert len(made) == 14  # 6 runs, of which 2 were kept


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": y[:10]}, r"\[10\]"),
        ({"groups": np.zeros(240)}, "at least two groups"),
        ({"groups": np.arange(240)}, "needs at least 4 rows"),
        ({"groups": [1, 2]}, r"\[2\]"),
        ({"search": 20}, "of tasks or groups"),
    ],
)
def test_what_cannot_be_audited_is_refused(changes, words: str) -> None:
    options = {"y": y, "seeds": 2, **changes}
    with pytest.raises(ValueError, match=words):
        ol.order_sensitivity(FirstRows(), X, **options)
