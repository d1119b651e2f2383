"""Exported heads, torch.export and ONNX: the same answers as at home."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.exact.toys import PROBE, X, Y, fed, of_tasks
from torch import nn

import orderless as ol
from orderless.features import Backbone, DeadLeaves, RandomConvolution, RandomReLU


def test_the_exported_module_gives_the_head_s_answers() -> None:
    head = of_tasks(range(5), weights="evidence")
    mean = head.export()
    probabilities = head.export(probabilities=True)
    expected = head.predict(PROBE)
    assert torch.allclose(mean(PROBE), head.predictive(PROBE).mean, rtol=0, atol=1e-12)
    head.update(X, Y % 2, task=1)  # later updates do not change it
    assert torch.allclose(probabilities(PROBE), expected, rtol=0, atol=1e-12)
    sizes = [sum(part.numel() for part in module.buffers()) for module in (mean, probabilities)]
    assert sizes[0] < sizes[1]


def test_what_cannot_be_exported_is_told() -> None:
    head = ol.ExactHead("linear", targets="values")
    with pytest.raises(ValueError, match="has no probabilities"):
        head.export(probabilities=True)
    with pytest.raises(ValueError, match="nothing to export yet"):
        head.export()


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers)


MAPS = {
    "relu": (lambda: RandomReLU(3 * 12 * 12, 32), 1e-6),
    "leaves": (lambda: DeadLeaves(3, 12, 4, regions=2), 1e-6),
    "convolution": (lambda: RandomConvolution(3, 12, 8), 1e-6),
    "network": (network, 1e-4),
    "backbone": (lambda: Backbone(network(), inputs=torch.rand(8, 3, 12, 12)), 1e-4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "probabilities"), [*((kind, True) for kind in MAPS), ("relu", False)]
)
@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_an_exported_head_answers_alike_in_onnxruntime(
    kind: str, probabilities: bool, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    make_map, tolerance = MAPS[kind]
    x = torch.rand(300, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0].mean((1, 2)) > x[:, 1].mean((1, 2))).long()
    head = ol.ExactHead(make_map(), classes=2)
    head.update(x, y)
    expected = (head.predict(x) if probabilities else head.predictive(x).mean).numpy()
    module = head.export(probabilities=probabilities).eval()
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_module_that_was_exported_without_options_goes_to_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    module = fed(X, Y).export(probabilities=True)
    torch.onnx.export(module, (PROBE,), str(tmp_path / "x.onnx"), verbose=False)
    assert (tmp_path / "x.onnx").stat().st_size > 0
