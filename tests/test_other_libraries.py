"""river, ONNX and torch.export: their own checks, and the same answers as at home."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import orderless as ol

river = pytest.importorskip("river")
from river import checks  # noqa: E402

from orderless.estimators.river import StreamClassifier, StreamRegressor  # noqa: E402

MODELS = [
    StreamClassifier(n_particles=1, n_features=16),
    StreamRegressor(n_particles=1, n_features=16),
]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.filterwarnings("ignore:.*are clipped", "ignore:the inputs are so small")
def test_river_is_content_with_the_first_samples_of_its_streams(model) -> None:
    for check in checks.yield_checks(model):
        if "dataset" in getattr(check, "keywords", {}):
            check.keywords["dataset"] = list(itertools.islice(check.keywords["dataset"], 24))
        check(model.clone())


@pytest.mark.sweep
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.filterwarnings("ignore:.*are clipped", "ignore:the inputs are so small")
def test_river_is_content(model) -> None:
    checks.check_estimator(model)


def samples(count: int = 60) -> list[tuple[dict, str, float]]:
    """Two numbers and a category; a label and a value that depend on both."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(count):
        a, b, kind = draw.normal(), draw.normal(), ["x", "y"][draw.integers(2)]
        value = 5.0 + a + (2.0 if kind == "x" else -2.0)
        found.append(({"a": a, "b": b, "kind": kind}, "high" if value > 5.0 else "low", value))
    return found


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


def test_a_window_over_a_stream_is_the_model_of_what_is_in_it() -> None:
    window, fresh = StreamClassifier(n_features=16), StreamClassifier(n_features=16)
    for place, (x, y, _) in enumerate(samples()):
        window.learn_one(x, y)
        if place >= 20:
            window.unlearn_one(*samples()[place - 20][:2])
    for x, y, _ in samples()[-20:]:
        fresh.learn_one(x, y)
    x, _, _ = samples()[0]
    assert window.predict_proba_one(x) == fresh.predict_proba_one(x)


# --- torch.export and ONNX -----------------------------------------------------------------------


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2)
    return torch.nn.Sequential(*layers, torch.nn.Flatten())


MAPS = {
    "relu": (lambda: ol.features.RandomReLU(3 * 12 * 12, 32), 1e-6),
    "leaves": (lambda: ol.features.DeadLeaves(3, 12, 4, regions=2), 1e-6),
    "convolution": (lambda: ol.features.RandomConvolution(3, 12, 8), 1e-6),
    "network": (network, 1e-4),
    "backbone": (lambda: ol.features.Backbone(network(), inputs=torch.rand(8, 3, 12, 12)), 1e-4),
}


@pytest.mark.slow
@pytest.mark.parametrize("probabilities", [True, False])
@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_an_exported_filter_answers_alike_in_onnxruntime(
    kind: str, probabilities: bool, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    make_map, tolerance = MAPS[kind]
    x = torch.rand(300, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0].mean((1, 2)) > x[:, 1].mean((1, 2))).long()
    rb = ol.RaoBlackwellizedFilter(make_map(), classes=2)
    rb.update(x, y)
    expected = (rb.predict(x) if probabilities else rb.predictive(x).mean).numpy()
    module = rb.export(probabilities=probabilities, portable=True).eval()
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(module, (x[:3],), dynamic_shapes=shapes)
    # the heads' products are float64, and rounded otherwise for another number of rows
    exact = 1e-12 if tolerance == 1e-6 else tolerance
    assert np.abs(program.module()(x).numpy() - expected).max() < exact
    path = tmp_path / "head.onnx"
    torch.onnx.export(program, f=str(path), input_names=["x"], external_data=False, verbose=False)
    (answers,) = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})
    assert np.abs(answers - expected).max() < tolerance
    assert np.array_equal(answers.argmax(1), expected.argmax(1))
