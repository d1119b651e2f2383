"""What scikit-learn asks of an estimator: its own checks, pipelines, grid searches, data frames."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from orderless import ExactClassifier, ExactRegressor


def name_of(check) -> str:
    """A check of scikit-learn is a function, or a partial of one."""
    return getattr(check, "func", check).__name__


# Small, because scikit-learn fits each a hundred times.
ESTIMATORS = [
    ExactClassifier(n_features=64),
    ExactRegressor(n_features=64),
    ExactClassifier("linear"),
    ExactRegressor("linear"),
]

# scikit-learn itself leaves array_api out unless SCIPY_ARRAY_API is set before scipy is imported
CHECKS = [
    (estimator, check)
    for each in ESTIMATORS
    for estimator, check in estimator_checks_generator(each)
    if name_of(check) != "check_array_api_input"
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"),
    CHECKS,
    ids=[f"{type(e).__name__}-{e.features}-{name_of(check)}" for e, check in CHECKS],
)
@pytest.mark.filterwarnings("ignore:.*are clipped")  # its streams are not standardised
def test_scikit_learn_is_content(estimator, check) -> None:
    check(estimator)


def test_it_works_in_a_pipeline_and_a_grid_search() -> None:
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), ExactClassifier(random_state=0))
    grid = {"exactclassifier__n_features": [8, 64]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_score_ > 0.85
    assert search.predict(X[:3]).shape == (3,)


def test_named_columns_are_learned_without_a_warning(recwarn) -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    ExactRegressor(n_features=16).fit(X, X["a"]).partial_fit(X, X["a"])
    assert not [warned for warned in recwarn if "feature names" in str(warned.message)]
