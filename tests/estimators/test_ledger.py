"""An estimator with a ledger forgets what it has learned, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from tests.estimators.helpers import FIXED, same_answers

import orderless as ol
from orderless import ExactClassifier, ExactRegressor

OPTIONS = {**FIXED, "ledger": True}


def accepted(model, X, y) -> int:
    """How many of some samples can be forgotten, one at a time."""
    count = 0
    for row in range(len(X)):
        try:
            model.forget(X[row : row + 1], y[row : row + 1])
        except ValueError as error:
            assert "never learned all" in str(error)
        else:
            count += 1
    return count


def test_every_foreign_deletion_is_refused_and_every_true_one_accepted(iris) -> None:
    X, y = iris
    strange = X + np.random.default_rng(0).normal(size=X.shape)
    another = np.where(y == "setosa", "virginica", "setosa")
    model = ExactClassifier(**OPTIONS).fit(X, y)
    before = model.predict_proba(X)
    assert accepted(model, strange[:20], y[:20]) == accepted(model, X[:20], another[:20]) == 0
    assert np.array_equal(model.predict_proba(X), before)
    assert accepted(model, X[:20], y[:20]) == 20
    assert accepted(ExactClassifier(**FIXED).fit(X, y), strange[:20], y[:20]) > 0
    values = ExactRegressor(**OPTIONS, target_scale=1.0).fit(X[:, :2], X[:, 3])
    assert accepted(values, X[:20, :2], X[:20, 3] + 0.01) == 0
    assert accepted(values, X[:20, :2], X[:20, 3]) == 20


@pytest.mark.parametrize("numbers", [False, True])
def test_labels_keep_their_entries_when_others_appear(iris, numbers: bool) -> None:
    X, y = iris
    if numbers:
        y = np.searchsorted(np.unique(y), y) * 10
    last_first = np.argsort(y)[::-1]
    whole = ExactClassifier(**OPTIONS).fit(X, y)
    stream = ExactClassifier(**OPTIONS)
    for rows in np.array_split(last_first, 7):
        stream.partial_fit(X[rows], y[rows].astype(float) if numbers else y[rows])
    parts = [ExactClassifier(**OPTIONS).fit(X[y == name], y[y == name]) for name in np.unique(y)]
    merged = parts[2] + parts[0] + parts[1]
    for model in (stream, merged):
        assert same_answers(model, whole, X)
        assert accepted(model - parts[0], X[last_first[-5:]], y[last_first[-5:]]) == 0
        assert accepted(model, X, y) == len(X)


def test_it_is_saved_and_dropped(iris, tmp_path) -> None:
    X, y = iris
    model = ExactClassifier(**OPTIONS).fit(X, y)
    again = ol.load(ol.save(tmp_path / "model", model), into=ExactClassifier())
    assert again.ledger and accepted(again, X[:5] + 1.0, y[:5]) == 0
    assert accepted(again, X[:5], y[:5]) == 5
    without = ExactClassifier(**FIXED).fit(X, y)
    with pytest.raises(ValueError, match="ledger is True here and False there"):
        model + without
    model.drop_ledger()
    assert same_answers(model + without, without + without, X)
    ol.save(tmp_path / "published", model)
    ol.save(tmp_path / "without", without)
    files = [(tmp_path / name).read_bytes() for name in ("published", "without")]
    assert files[0] == files[1]
    assert ol.load(tmp_path / "published", into=ExactClassifier(ledger=True)).ledger is False
