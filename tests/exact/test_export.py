"""ONNX and torch.export: the same answers as at home."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import orderless as ol


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
@pytest.mark.parametrize(
    ("kind", "probabilities"), [*((kind, True) for kind in MAPS), ("relu", False)]
)
@pytest.mark.filterwarnings("ignore")  # of torch about itself
def test_an_exported_filter_answers_alike_in_onnxruntime(
    kind: str, probabilities: bool, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    make_map, tolerance = MAPS[kind]
    x = torch.rand(300, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0].mean((1, 2)) > x[:, 1].mean((1, 2))).long()
    rb = ol.ExactHead(make_map(), classes=2)
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
