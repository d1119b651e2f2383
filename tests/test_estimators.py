"""The scikit-learn estimators: its own checks, and that order cannot matter to the exact one."""

from __future__ import annotations

import operator
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


def test_a_warning_names_what_an_estimator_has():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(UserWarning, match="inputs are so small .*: set input_mean and input_scale"):
        ol.ParticleClassifier(n_features=16, input_scale=1e6).partial_fit(X, y)


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


@pytest.mark.parametrize("method", ["rb", "wpf", pytest.param("averaging", marks=pytest.mark.slow)])
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


# --- an algebra of data --------------------------------------------------------------------------

FIXED = {"n_features": 32, "random_state": 0, "input_scale": 1.0}


def same_answers(a, b, X) -> bool:
    return np.array_equal(a.classes_, b.classes_) and np.array_equal(
        a.predict_proba(X), b.predict_proba(X)
    )


@pytest.mark.parametrize("texts", [False, True])
def test_two_sites_with_other_classes_merge_by_label(iris, texts: bool) -> None:
    X, y = iris
    y = y if texts else np.searchsorted(np.unique(y), y) * 10
    here, there = y != np.unique(y)[0], y != np.unique(y)[1]
    a, b = (ParticleClassifier(**FIXED).fit(X[rows], y[rows]) for rows in (here, there))
    twice = np.concatenate([X[here], X[there]]), np.concatenate([y[here], y[there]])
    whole = ParticleClassifier(**FIXED).fit(*twice)
    assert same_answers(a + b, whole, X) and same_answers(sum([b, a]), whole, X)
    assert list(a.classes_) == list(np.unique(y[here]))  # both stay as they were
    assert np.array_equal(((a + b) - b).predict(X[here]), a.predict(X[here]))


def test_regressors_merge_and_forget() -> None:
    X, y = load_diabetes(return_X_y=True)
    options = {"n_features": 32, "random_state": 0, "input_scale": 0.05}
    options |= {"target_mean": 150.0, "target_scale": 75.0}
    a, b = (ParticleRegressor(**options).fit(X[i::2], y[i::2]) for i in range(2))
    whole = ParticleRegressor(**options).fit(X, y)
    assert np.array_equal((a + b).predict(X), whole.predict(X))
    assert np.array_equal(whole.forget(X[1::2], y[1::2]).predict(X), a.predict(X))


def test_what_does_not_fit_is_not_merged(iris) -> None:
    X, y = iris
    a = ParticleClassifier(**FIXED).fit(X, y)
    numbers = np.searchsorted(np.unique(y), y)
    others = [
        ({"random_state": 1}, y, "the same random_state"),
        ({"input_scale": 2.0}, y, "input_scale differs"),
        ({"class_weight": "balanced"}, y, "balanced"),
        ({"class_weight": {"setosa": 2.0}}, y, "class_weight is None here and {'setosa': 2.0}"),
        ({}, numbers, "labels must be all numbers, all texts"),
        ({}, numbers > 0, "or all truth values"),
    ]
    for changes, labels, words in others:
        b = ParticleClassifier(**{**FIXED, **changes}).fit(X, labels)
        with pytest.raises(ValueError, match=words):
            a + b
    by_data = [
        ParticleClassifier(n_features=32, random_state=0).fit(X[i::2], y[i::2]) for i in range(2)
    ]
    with pytest.raises(ValueError, match="instead of taking it from the data of each"):
        by_data[0] + by_data[1]
    with pytest.raises(ValueError, match="only estimators with method='rb'"):
        _ = sum([ParticleClassifier("averaging", n_particles=1, epochs=1).fit(X, y)])


def test_filters_of_estimators_merge_only_where_labels_and_scales_mean_the_same(iris) -> None:
    X, y = iris
    first, second, third = np.unique(y)
    a, b = (ParticleClassifier(**FIXED).fit(X[rows], y[rows]) for rows in (y != third, y != first))
    with pytest.raises(ValueError, match="add the estimators that these filters belong to"):
        a.filter_ + b.filter_  # 'setosa' and 'versicolor' would share a column
    scaled = [
        ParticleClassifier(n_features=32, random_state=0).fit(X[i::2], y[i::2]) for i in range(2)
    ]
    with pytest.raises(ValueError, match="mean something else there"):
        scaled[0].filter_ + scaled[1].filter_
    whole = ParticleClassifier(**FIXED).fit(X[y != third], y[y != third])
    assert (a.filter_ + whole.filter_).samples == 200
    late = a.partial_fit(X[y == third], y[y == third])  # has learned a label since
    assert (late.filter_ + (whole + b).filter_).samples == 350


def test_what_a_classifier_forgets_was_never_there(iris) -> None:
    X, y = iris
    gone = np.arange(150) % 3 == 0
    model = ParticleClassifier(**FIXED).fit(X, y).forget(X[gone], y[gone])
    assert same_answers(model, ParticleClassifier(**FIXED).fit(X[~gone], y[~gone]), X)
    scaled = ParticleClassifier(n_features=32, random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match="keep a trace of forgotten samples"):
        scaled.forget(X[gone], y[gone])


def test_new_classes_may_come_in_a_stream(iris) -> None:
    X, y = iris
    model = ParticleClassifier(**FIXED)
    for label in np.unique(y)[::-1]:
        model.partial_fit(X[y == label], y[y == label])
    assert same_answers(model, ParticleClassifier(**FIXED).fit(X, y), X)


@pytest.mark.parametrize("kind", [ParticleClassifier, ParticleRegressor])
def test_a_whole_weight_is_repetition_scales_included(iris, kind) -> None:
    X, y = iris
    y = y if kind is ParticleClassifier else X[:, 0] + X[:, 1] ** 2
    times = np.random.default_rng(0).integers(0, 4, len(X))
    options = {"n_features": 32, "random_state": 0}
    weighted = kind(**options).fit(X, y, sample_weight=times)
    repeated = kind(**options).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    assert np.array_equal(weighted.input_scale_, repeated.input_scale_)
    assert np.array_equal(weighted.predict(X), repeated.predict(X))
    streamed = kind(**options).fit(X, y).partial_fit(X, y, sample_weight=np.full(150, 2.5))
    assert streamed.filter_.samples == 150 * 3.5


def test_a_balanced_classifier_finds_the_rare_class() -> None:
    """As scikit-learn's own balanced ridge does, on the same features."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(2000, 2))
    X[:40] += 1.2
    y = np.where(np.arange(2000) < 40, "rare", "common")
    plain, balanced = (
        ParticleClassifier(n_features=32, random_state=0, class_weight=weight).fit(X, y)
        for weight in (None, "balanced")
    )
    assert balanced.class_weight_ == {"common": 0.3125, "rare": 16.0}  # 1 : 49, in sixteenths
    rare = y == "rare"
    assert (plain.predict(X[rare]) == "rare").mean() < 0.2
    assert (balanced.predict(X[rare]) == "rare").mean() > 0.6
    with pytest.raises(ValueError, match="class_prior='uniform'"):
        balanced.partial_fit(X, y)
    options = {"n_features": 32, "random_state": 0, "class_prior": "uniform"}
    stream = ParticleClassifier(**options)
    for rows in np.array_split(np.arange(2000), 7):
        stream.partial_fit(X[rows], y[rows])
    assert (stream.predict(X[rare]) == "rare").mean() > 0.5
    given = ParticleClassifier(n_features=32, random_state=0, class_weight={"rare": 3.0})
    whole = ParticleClassifier(n_features=32, random_state=0)
    given.fit(X, y), whole.fit(X, y, sample_weight=np.where(rare, 3, 1))
    assert given.filter_.samples == whole.filter_.samples == 1960 + 120


@pytest.mark.parametrize("method", ["rb", "wpf"])
def test_a_saved_estimator_learns_on_as_the_original(iris, method: str, tmp_path) -> None:
    X, y = iris
    model = ParticleClassifier(method, n_features=32, n_particles=2, epochs=2, random_state=0)
    ol.save(tmp_path / "model", model.fit(X, y))
    again = ol.load(tmp_path / "model", into=ParticleClassifier())
    for each in (model, again):
        each.partial_fit(X[:20], y[:20])
    assert same_answers(model, again, X) and again.get_params() == model.get_params()
    values = ParticleRegressor(method, n_particles=2, epochs=2).fit(X, X[:, 0])
    ol.save(tmp_path / "values", values)
    other = ol.load(tmp_path / "values", into=ParticleRegressor())
    answers = [each.predict(X, return_std=True) for each in (values, other)]
    assert all(np.array_equal(*pair) for pair in zip(*answers, strict=True))
    with pytest.raises(ValueError, match="of a ParticleClassifier, not a ParticleRegressor"):
        ol.load(tmp_path / "model", into=ParticleRegressor())


def test_decisions_agree_with_probabilities(iris) -> None:
    X, y = iris
    three = ParticleClassifier(**FIXED).fit(X, y)
    np.testing.assert_array_equal(
        three.decision_function(X).argmax(1), three.predict_proba(X).argmax(1)
    )
    np.testing.assert_allclose(np.exp(three.predict_log_proba(X)), three.predict_proba(X))
    two = ParticleClassifier(**FIXED).fit(X[y != "setosa"], y[y != "setosa"])
    assert np.array_equal(two.decision_function(X) > 0, two.predict(X) == two.classes_[1])


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
        (lambda: ParticleClassifier("wpf").partial_fit(X, y), "first call"),
        (
            lambda: ParticleClassifier("wpf").partial_fit(X, y, classes=["setosa"]),
            r"y must hold labels of \['setosa'\], got 'versicolor'",
        ),
        (lambda: ParticleClassifier("wpf", hidden=8).fit(X, y), "hidden must be a tuple"),
        (lambda: ParticleClassifier(n_features=8).fit(X, y).predict(X[:0]), "0 sample"),
        (lambda: ParticleClassifier(n_features=8).fit(X, y).predict(X[0]), "Reshape your data"),
        (lambda: ParticleClassifier(input_scale=0.0).fit(X, y), "input_scale must be positive"),
        (lambda: ParticleClassifier(input_scale=[1, 2]).fit(X, y), "one per column"),
        (lambda: ParticleRegressor().partial_fit(X, 1e6 + X[:, 0]), "target_scale"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()
    model = ParticleClassifier("wpf", n_particles=1).partial_fit(X, y, classes=np.unique(y))
    with pytest.raises(ValueError, match="must stay as in the first call"):
        model.partial_fit(X, y, classes=["a", "b"])
    with pytest.raises(ValueError, match="only estimators with method='rb' can forget"):
        model.forget(X, y)
    model = ParticleClassifier(n_features=8).partial_fit(X, y)
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


def test_a_stream_whose_first_call_failed_can_begin_again() -> None:
    X, y = np.zeros((3, 2)), np.array([100.0, 101.0, 102.0])
    model = ParticleRegressor(n_features=16, random_state=0)
    with pytest.raises(ValueError, match="set both to fit y"):
        model.partial_fit(X, y)
    assert not hasattr(model, "filter_")
    model.set_params(target_mean=100.0, target_scale=10.0).partial_fit(X, y)
    assert model.target_scale_ == 10.0


def test_a_call_that_fails_leaves_a_fitted_estimator_as_it_was() -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    model = ParticleClassifier(n_features=16, random_state=0).fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="sample_weight"):
        model.partial_fit(X, y + 5, sample_weight=np.full(20, 0.3))
    with pytest.raises(ValueError, match="class_weight must not be negative"):
        model.set_params(class_weight={0: -1.0}).fit(np.zeros((4, 3)), [0, 1, 2, 3])
    state = {**model.state_dict(), "n_features_in_": 7}
    with pytest.raises(ValueError):
        model.load_state_dict(state)
    assert model.classes_.tolist() == [0, 1] and model.n_features_in_ == 2
    assert np.array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize(
    "options",
    [
        {"class_weight": {np.int64(0): np.float64(2.0), np.int64(1): 1.0}},
        {"class_prior": np.array([0.2, 0.8])},
        {"input_scale": np.array([1.0, 2.0]), "n_features": np.int64(16)},
        {"method": "wpf", "hidden": (np.int64(8),), "epochs": 1},
    ],
)
def test_parameters_of_numpy_types_are_used_saved_and_loaded(options, tmp_path) -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    model = ParticleClassifier(**{"n_features": 16, "random_state": 0, **options}).fit(X, y)
    ol.save(tmp_path / "model", model)
    again = ol.load(tmp_path / "model", into=ParticleClassifier())
    assert same_answers(model.partial_fit(X, y), again.partial_fit(X, y), X)


def test_an_estimator_is_loaded_onto_the_device_that_was_asked_for() -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    state = ParticleClassifier(n_features=16).fit(X, y).state_dict()
    again = ParticleClassifier()
    again.load_state_dict({**state, "parameters": {**state["parameters"], "device": "cuda"}})
    assert again.device == "cpu" and again.predict(X).shape == (20,)


@pytest.mark.parametrize("method", ["rb", "wpf"])
def test_named_columns_are_learned_without_a_warning(method, recwarn) -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    ParticleRegressor(method, n_features=16, epochs=1).fit(X, X["a"]).partial_fit(X, X["a"])
    assert not [warned for warned in recwarn if "feature names" in str(warned.message)]


def test_a_loaded_estimator_has_no_names_of_columns_from_before(tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    ol.save(tmp_path / "model", ParticleClassifier(n_features=16).fit(X, y))
    other = ParticleClassifier(n_features=16).fit(pandas.DataFrame(X, columns=["a", "b"]), y)
    assert not hasattr(ol.load(tmp_path / "model", into=other), "feature_names_in_")


@pytest.mark.parametrize("weights", [{}, {0: 0.0}, {0: 0.0, 1: 64.0}])
def test_class_weights_are_rounded_to_sixteenths(weights) -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    model = ParticleClassifier(n_features=16, class_weight=weights, random_state=0).fit(X, y)
    assert model.class_weight_ == {
        label: 1 / 16 if w == 0 else 16.0 for label, w in weights.items()
    }


def test_class_weights_beyond_16_are_relative_to_the_classes_they_do_not_name(tmp_path) -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 3
    part, whole = (
        ParticleClassifier(**FIXED, class_weight=weights).fit(X, y)
        for weights in ({2: 64.0}, {0: 1.0, 1: 1.0, 2: 64.0})
    )
    assert same_answers(part, whole, X)
    ol.save(tmp_path / "model", part)
    loaded = ol.load(tmp_path / "model", into=ParticleClassifier())
    loaded.partial_fit(X + 1.0, y).forget(X + 1.0, y)
    assert same_answers(loaded, whole, X)
    with pytest.raises(ValueError, match="class_weight is"):
        part + ParticleClassifier(**FIXED, class_weight={2: 16.0}).fit(X, y)


def test_estimators_of_columns_in_another_order_are_not_added() -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    y = np.arange(20) % 2
    fitted = [ParticleClassifier(**FIXED).fit(part, y) for part in (X, X[["b", "a"]])]
    for combine in (operator.add, operator.sub):
        with pytest.raises(ValueError, match=r"\['a', 'b'\] here and \['b', 'a'\] there"):
            combine(*fitted)
    unnamed = ParticleClassifier(**FIXED).fit(X.to_numpy(), y)
    assert (fitted[0] + unnamed).filter_.samples == 40
