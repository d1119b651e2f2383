"""What scikit-learn asks of an estimator: its own checks, pipelines, grid searches, data frames."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import orderless as ol
from orderless import ParticleClassifier, ParticleRegressor


def name_of(check) -> str:
    """A check of scikit-learn is a function, or a partial of one."""
    return getattr(check, "func", check).__name__


# Small, because scikit-learn fits each a hundred times.
ESTIMATORS = [
    ParticleClassifier(n_particles=2, n_features=64),
    ParticleRegressor(n_particles=2, n_features=64),
    ParticleClassifier("wpf", n_particles=2, hidden=(16,), epochs=8),
    ParticleRegressor("wpf", n_particles=2, hidden=(16,), epochs=8),
]


def is_meant(estimator, check) -> bool:
    """Whether a check asks for something that is promised.

    scikit-learn itself leaves the first one out unless SCIPY_ARRAY_API is set before scipy is
    imported. Gradient steps depend on the order, hence repeated samples are not weighted ones: its
    own SGDClassifier fails there, too.
    """
    if name_of(check) == "check_array_api_input":
        return False
    repeated = name_of(check) == "check_sample_weight_equivalence_on_dense_data"
    return estimator.method == "rb" or not repeated


CHECKS = [
    (estimator, check)
    for each in ESTIMATORS
    for estimator, check in estimator_checks_generator(each)
    if is_meant(estimator, check)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"),
    CHECKS,
    ids=[f"{type(e).__name__}-{e.method}-{name_of(check)}" for e, check in CHECKS],
)
@pytest.mark.filterwarnings("ignore:.*are clipped")  # its streams are not standardised
def test_scikit_learn_is_content(estimator, check) -> None:
    check(estimator)


def test_it_works_in_a_pipeline_and_a_grid_search() -> None:
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), ParticleClassifier(n_particles=1, random_state=0))
    grid = {"particleclassifier__n_features": [8, 64], "particleclassifier__weights": ["uniform"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_score_ > 0.85
    assert search.predict(X[:3]).shape == (3,)


@pytest.mark.parametrize("method", ["rb", "wpf"])
def test_named_columns_are_learned_without_a_warning(method, recwarn) -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    ParticleRegressor(method, n_features=16, epochs=1).fit(X, X["a"]).partial_fit(X, X["a"])
    assert not [warned for warned in recwarn if "feature names" in str(warned.message)]


def test_the_library_imports_without_scikit_learn_and_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import orderless as ol\n"
        "assert 'ParticleClassifier' in dir(ol)\n"
        "try: ol.ParticleClassifier\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "need scikit-learn" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ol.Nothing
