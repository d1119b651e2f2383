"""The scikit-learn estimators: its own checks, and that order cannot matter to the exact one."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import orderless as ol
from orderless import ParticleClassifier, ParticleRegressor


def name_of(check) -> str:
    """A check of scikit-learn is a function, or a partial of one."""
    return getattr(check, "func", check).__name__


# Small, because scikit-learn fits each a hundred times; no check is expected to fail.
ESTIMATORS = [
    ParticleClassifier(n_particles=2, n_features=64),
    ParticleRegressor(n_particles=2, n_features=64),
    ParticleClassifier("wpf", n_particles=2, hidden=(16,), epochs=8),
    ParticleRegressor("wpf", n_particles=2, hidden=(16,), epochs=8),
]


# scikit-learn itself leaves this one out unless SCIPY_ARRAY_API is set before scipy is imported
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
    ids=[f"{type(e).__name__}-{e.method}-{name_of(check)}" for e, check in CHECKS],
)
@pytest.mark.filterwarnings("ignore:.*are clipped")  # its streams are not standardised
def test_scikit_learn_is_content(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    data = load_iris()
    X = StandardScaler().fit_transform(data.data)
    return X, data.target_names[data.target]


def shuffled(X, y, seed: int):
    rows = np.random.default_rng(seed).permutation(len(X))
    return X[rows], y[rows]


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["uniform", "evidence", "tempered"])
def test_no_order_and_no_batching_changes_a_bit_of_the_exact_classifier(iris, weights) -> None:
    X, y = iris
    options = {"n_features": 32, "weights": weights, "random_state": 0, "input_scale": 1.0}
    whole = ParticleClassifier(**options).fit(X, y).predict_proba(X)
    for seed, size in ((0, 1), (1, 7), (2, 150)):
        model = ParticleClassifier(**options)
        mixed_X, mixed_y = shuffled(X, y, seed)
        for start in range(0, len(X), size):
            part = slice(start, start + size)
            model.partial_fit(mixed_X[part], mixed_y[part], classes=np.unique(y))
        assert np.array_equal(model.predict_proba(X), whole)
    by_class = ParticleClassifier(**options)
    for label in np.unique(y)[::-1]:
        by_class.partial_fit(X[y == label], y[y == label], classes=np.unique(y))
    assert np.array_equal(by_class.predict_proba(X), whole)


def test_no_order_changes_a_bit_of_the_exact_regressor() -> None:
    X, y = load_diabetes(return_X_y=True)
    options = {"n_features": 32, "random_state": 0, "input_scale": 0.05}
    options |= {"target_mean": 150.0, "target_scale": 75.0}
    mean, deviation = ParticleRegressor(**options).fit(X, y).predict(X, return_std=True)
    model = ParticleRegressor(**options)
    mixed_X, mixed_y = shuffled(X, y, 0)
    for start in range(0, len(X), 50):
        model.partial_fit(mixed_X[start : start + 50], mixed_y[start : start + 50])
    again = model.predict(X, return_std=True)
    assert np.array_equal(again[0], mean) and np.array_equal(again[1], deviation)


def test_fit_finds_a_scale_that_does_not_depend_on_the_order_of_the_rows() -> None:
    X = np.random.default_rng(0).lognormal(0, 5, size=(500, 3))  # sums of these do round
    y = (X[:, 0] > 1).astype(int)
    models = [
        ParticleClassifier(n_features=16, random_state=0).fit(*shuffled(X, y, seed))
        for seed in (0, 1)
    ]
    assert np.array_equal(models[0].input_scale_, models[1].input_scale_)
    assert np.array_equal(models[0].input_mean_, models[1].input_mean_)
    assert np.array_equal(models[0].predict_proba(X), models[1].predict_proba(X))


def test_gradient_methods_do_depend_on_the_order(iris) -> None:
    X, y = iris
    ways = [np.argsort(y), np.argsort(y)[::-1]]
    answers = [
        ParticleClassifier("wpf", n_particles=2, random_state=0)
        .partial_fit(X[rows], y[rows], classes=np.unique(y))
        .predict_proba(X)
        for rows in ways
    ]
    assert np.abs(answers[0] - answers[1]).max() > 0.01


# --- quality -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rb", "wpf", "averaging"])
def test_iris_is_learned_by_every_method(iris, method: str) -> None:
    X, y = shuffled(*iris, seed=0)
    model = ParticleClassifier(method, n_particles=3, epochs=60, random_state=0)
    model.fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > 0.88
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (150, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rb", "wpf", "averaging"])
def test_error_bars_of_the_regressor_cover_what_they_should(method: str) -> None:
    generator = np.random.default_rng(0)
    X = generator.uniform(-3, 3, size=(400, 1))
    y = 50 + 20 * (np.sin(X[:, 0]) + 0.2 * generator.normal(size=400))
    model = ParticleRegressor(method, random_state=0, epochs=40).fit(X[:300], y[:300])
    mean, deviation = model.predict(X[300:], return_std=True)
    assert model.score(X[300:], y[300:]) > 0.85
    covered = (np.abs(y[300:] - mean) < 2 * deviation).mean()
    assert covered > 0.85  # 0.95 for the truth; 100 test samples and imperfect fits
    assert 3 < np.median(deviation) < 8  # the noise is 4


def test_far_from_the_data_the_exact_regressor_is_less_sure() -> None:
    X = np.linspace(-1, 1, 100)[:, None]
    model = ParticleRegressor(random_state=0, input_scale=1.0).fit(X, np.sin(3 * X[:, 0]))
    _, deviation = model.predict(np.array([[0.0], [3.5]]), return_std=True)
    assert deviation[1] > 3 * deviation[0]


# --- the rest of scikit-learn --------------------------------------------------------------------


def test_it_works_in_a_pipeline_and_a_grid_search() -> None:
    X, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), ParticleClassifier(n_particles=1, random_state=0))
    grid = {"particleclassifier__n_features": [8, 64], "particleclassifier__weights": ["uniform"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, y)
    assert search.best_score_ > 0.85
    assert search.predict(X[:3]).shape == (3,)


def test_single_and_double_precision_give_the_same_labels(iris) -> None:
    X, y = iris
    single, double = (
        ParticleClassifier(n_features=64, random_state=0).fit(X.astype(kind), y).predict(X)
        for kind in (np.float32, np.float64)
    )
    assert (single == double).mean() > 0.98


def test_a_short_batch_counts_for_what_is_in_it(iris) -> None:
    X, y = iris
    weights = []
    for rows in (X[:1], np.repeat(X[:1], 32, axis=0)):
        model = ParticleClassifier("wpf", n_particles=1, lr=1e-3, random_state=0)
        for _ in range(32 // len(rows)):
            model.partial_fit(rows, y[: len(rows)], classes=np.unique(y))
        weights.append(next(model.filter_.particles.parameters()).detach().clone())
    start = ParticleClassifier("wpf", n_particles=1, random_state=0, epochs=1, lr=1e-9)
    start = next(start.fit(X, y).filter_.particles.parameters()).detach()
    # 32 small steps and a large one differ in second order of the learning rate
    assert (weights[0] - weights[1]).norm() < 0.05 * (weights[1] - start).norm()


@pytest.mark.parametrize("method", ["rb", "wpf"])
def test_a_pickled_model_learns_on_as_the_original(iris, method: str) -> None:
    X, y = iris
    model = ParticleClassifier(method, n_features=32, random_state=0).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    for each in (model, copy):
        each.partial_fit(X[:20], y[:20])
    assert np.array_equal(model.predict_proba(X), copy.predict_proba(X))
    assert clone(model).get_params() == model.get_params()


def test_partial_fit_after_fit_keeps_the_scale(iris) -> None:
    X, y = iris
    model = ParticleClassifier(n_features=32, random_state=0).fit(3 + X, y)
    scale = model.input_scale_
    model.partial_fit(4 + X[:30], y[:30])
    assert model.input_scale_ is scale and model.filter_.samples == 180


def test_mistakes_are_sentences(iris) -> None:
    X, y = iris
    cases = [
        (lambda: ParticleClassifier("gd").fit(X, y), "method must be one of"),
        (lambda: ParticleClassifier(n_particles=0).fit(X, y), "n_particles must be at least 1"),
        (lambda: ParticleClassifier().partial_fit(X, y), "first call"),
        (lambda: ParticleClassifier().partial_fit(X, y, classes=["setosa"]), "is none of"),
        (lambda: ParticleClassifier(input_scale=0.0).fit(X, y), "input_scale must be positive"),
        (lambda: ParticleClassifier(input_scale=[1, 2]).fit(X, y), "one per column"),
        (lambda: ParticleRegressor().partial_fit(X, 1e6 + X[:, 0]), "target_scale"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()
    model = ParticleClassifier(n_features=8).partial_fit(X, y, classes=np.unique(y))
    with pytest.raises(ValueError, match="before"):
        model.partial_fit(X, y, classes=["a", "b"])
    with pytest.warns(UserWarning, match="clipped"):
        model.partial_fit(100 * X, y)


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
