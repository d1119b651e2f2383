"""river's own checks of its estimators, and streams in any order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

river = pytest.importorskip("river")
from river import checks  # noqa: E402
from river.utils import Rolling  # noqa: E402

from orderless.estimators.river import StreamClassifier, StreamRegressor  # noqa: E402

MODELS = [
    StreamClassifier(n_features=16),
    StreamRegressor(n_features=16),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.filterwarnings("ignore:.*are clipped", "ignore:the inputs are so small")
def test_river_is_content_with_the_first_samples_of_its_streams(model) -> None:
    for check in checks.yield_checks(model):
        if "dataset" in getattr(check, "keywords", {}):
            check.keywords["dataset"] = list(itertools.islice(check.keywords["dataset"], 12))
        check(model.clone())


def samples(count: int = 60) -> list[tuple[dict, str, float]]:
    """Two numbers and a category; a label and a value that depend on both."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(count):
        a, b, kind = draw.normal(), draw.normal(), ["x", "y"][draw.integers(2)]
        value = 5.0 + a + (2.0 if kind == "x" else -2.0)
        found.append(({"a": a, "b": b, "kind": kind}, "high" if value > 5.0 else "low", value))
    return found


@pytest.mark.slow
def test_a_stream_in_any_order_gives_the_same_bits_and_unlearning_leaves_no_trace() -> None:
    models = StreamClassifier(n_features=16), StreamClassifier(n_features=16)
    for x, y, _ in samples():
        models[0].learn_one(x, y)
    for x, y, _ in [*samples()[:10], *reversed(samples())]:
        models[1].learn_one(x, y)
    for x, y, _ in samples()[:10]:
        models[1].unlearn_one(x, y)
    answers = [[model.predict_proba_one(x) for x, _, _ in samples()] for model in models]
    assert answers[0] == answers[1]
    with pytest.raises(ValueError, match="needs a sample that was learned before"):
        StreamClassifier().unlearn_one({"a": 1.0}, 0)
    right = [max(p, key=p.get) == y for p, (_, y, _) in zip(answers[0], samples(), strict=True)]
    assert np.mean(right) > 0.8


@pytest.mark.slow
def test_the_stream_regressor_learns_a_category_and_a_number() -> None:
    model = StreamRegressor(n_features=32)
    for x, _, value in samples(200):
        model.learn_one(x, value)
    errors = [model.predict_one(x) - value for x, _, value in samples(200)[:50]]
    assert np.square(errors).mean() < 0.3  # their variance is 5
    empty = StreamRegressor(n_features=16, target_mean=3.0)
    assert empty.predict_one({"a": 1.0}) == 3.0
    with pytest.raises(ValueError, match="targets must lie within"):
        empty.learn_one({"a": 1.0}, 1e9)
    assert empty.predict_one({"a": 1.0}) == 3.0
    empty.learn_one({"a": 1.0}, 5.0)
    empty.unlearn_one({"a": 1.0}, 5.0)
    assert empty.predict_one({"a": 1.0}) == 3.0


def test_a_rolling_window_is_the_model_of_what_is_in_it() -> None:
    window = Rolling(StreamClassifier, window_size=20, n_features=16)
    fresh = StreamClassifier(n_features=16)
    for x, y, _ in samples():
        window.update(x, y)
    for x, y, _ in samples()[-20:]:
        fresh.learn_one(x, y)
    x, _, _ = samples()[0]
    assert window.predict_proba_one(x) == fresh.predict_proba_one(x)


def test_models_of_a_divided_stream_are_added() -> None:
    samples = [({"x": i % 10 / 5 - 1}, "high" if i % 10 > 4 else "low") for i in range(40)]
    left = StreamClassifier(n_features=32)
    right = StreamClassifier(n_features=32)
    whole = StreamClassifier(n_features=32)
    for i, (x, y) in enumerate(samples):
        (left if i % 3 else right).learn_one(x, y)
        whole.learn_one(x, y)
    assert (left + right).predict_proba_one({"x": 0.3}) == whole.predict_proba_one({"x": 0.3})
    empty = StreamClassifier(n_features=32)
    assert (empty + whole).predict_one({"x": 0.3}) == "high"
    assert (empty + empty).predict_proba_one({"x": 0.3}) == {}


def test_what_has_unlearned_everything_knows_no_label() -> None:
    model = StreamClassifier(n_features=16)
    model.learn_one({"a": 1.0}, "yes")
    model.unlearn_one({"a": 1.0}, "yes")
    assert model.predict_proba_one({"a": 1.0}) == {} and model.predict_one({"a": 1.0}) is None


def test_keys_of_equal_text_are_added() -> None:
    one, both = StreamRegressor(n_features=16), StreamRegressor(n_features=16)
    for value in (0.0, 1.0, 2.0):
        one.learn_one({"1": 3 * value}, value)
        both.learn_one({1: value, "1": 2 * value}, value)
    assert both.predict_one({"1": 2.0}) == one.predict_one({1: 1.5, "1": 0.5})


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ({"a": None}, 0, "feature 'a' must be a number or a text, got None"),
        ({"a": 1.0}, None, "y must be a text or a number, got None"),
        ({"a": 1.0}, ("t",), r"got \('t',\)"),
    ],
)
def test_what_is_no_number_and_no_text_is_refused(x, y, words) -> None:
    for model in (StreamClassifier(n_features=16), StreamRegressor(n_features=16)):
        with pytest.raises(TypeError, match=words):
            model.learn_one(x, y)
        assert model.estimator is None


def test_a_target_out_of_range_gives_no_scale_of_a_single_sample() -> None:
    with pytest.raises(ValueError, match=r"got 260: set target_mean and target_scale to about"):
        StreamRegressor(n_features=16).learn_one({"a": 1.0}, 260.0)
