"""No order, no batching and no thread changes a bit of the estimators."""

from __future__ import annotations

import numpy as np
import pytest
from tests.estimators.helpers import FIXED, same_answers, shuffled

from orderless import ExactClassifier, ExactRegressor


def test_no_order_and_no_batching_changes_a_bit_of_the_classifier(iris) -> None:
    X, y = iris
    whole = ExactClassifier(**FIXED).fit(X, y)
    for seed, size in ((0, 1), (1, 7), (2, 150)):
        model = ExactClassifier(**FIXED)
        mixed_X, mixed_y = shuffled(X, y, seed)
        for start in range(0, len(X), size):
            part = slice(start, start + size)
            model.partial_fit(mixed_X[part], mixed_y[part], classes=np.unique(y))
        assert same_answers(model, whole, X)
    by_class = ExactClassifier(**FIXED)
    for label in np.unique(y)[::-1]:  # new classes may come in a stream
        by_class.partial_fit(X[y == label], y[y == label])
    assert same_answers(by_class, whole, X)


@pytest.mark.parametrize("kind", [ExactClassifier, ExactRegressor])
def test_fit_finds_scales_that_do_not_depend_on_the_order_of_the_rows(kind) -> None:
    X = np.random.default_rng(0).lognormal(0, 5, size=(500, 3))  # sums of these do round
    y = X[:, 0] > 1 if kind is ExactClassifier else X[:, 0]
    models = [kind(n_features=16, random_state=0).fit(*shuffled(X, y, seed)) for seed in (0, 1)]
    assert np.array_equal(models[0].input_scale_, models[1].input_scale_)
    assert np.array_equal(models[0].predict(X), models[1].predict(X))


def test_new_labels_in_small_batches_are_no_regression(recwarn) -> None:
    model = ExactClassifier("linear", input_scale=1.0)
    for label in range(5):
        model.partial_fit(np.eye(5)[label : label + 1], [label])
    assert not [w for w in recwarn if "regression problem" in str(w.message)]
