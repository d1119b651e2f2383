"""Convolutions and pooling of N networks in one kernel, against torch's for one network.

On a machine without a GPU Triton's interpreter runs the kernels (see conftest.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless.ensemble.device import matrix_precision
from orderless_lab.rl.kernels import convolution, rules
from orderless_lab.rl.kernels.convolution import Convolution, Tile
from orderless_lab.rl.kernels.pooling import MaxPooling

pytest.importorskip("triton", reason="Triton is made for Linux only")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the kernels nor cuDNN's convolutions, which judge here, may round to TF32."""
    monkeypatch.setattr(convolution, "PRECISION", "ieee")
    with matrix_precision("float32", torch.device(DEVICE)):
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def check(inputs: int, outputs: int, size: tuple[int, int], bias: bool = True) -> None:
    """Outputs and gradients of three networks equal those of a grouped convolution by torch."""
    n = 3
    x = random(2, n * inputs, *size).requires_grad_()
    weight = random(n, outputs, inputs, 3, 3, seed=1).requires_grad_()
    # the bias may be a part of a larger tensor
    offset = random(n, outputs + 2, seed=2)[:, 1:-1].requires_grad_() if bias else None
    flat = None if offset is None else offset.flatten()
    expected = F.conv2d(x, weight.flatten(0, 1), flat, padding=1, groups=n)
    y = Convolution.apply(x.contiguous(memory_format=torch.channels_last), weight, offset)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)  # float32, in another order
    slope = random(*expected.shape, seed=3)
    leaves = [leaf for leaf in (x, weight, offset) if leaf is not None]
    wanted = torch.autograd.grad(expected, leaves, slope)
    for ours, theirs in zip(torch.autograd.grad(y, leaves, slope), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "bias"),
    [
        (5, 18, (6, 5), True),
        (4, 3, (3, 4), False),
        pytest.param(34, 20, (3, 3), True, marks=pytest.mark.slow),
        pytest.param(70, 66, (2, 3), True, marks=pytest.mark.slow),
        pytest.param(16, 16, (4, 6), True, marks=pytest.mark.slow),  # these have their tiles
        pytest.param(32, 16, (4, 2), False, marks=pytest.mark.slow),
    ],
)
def test_one_kernel_is_n_convolutions(
    inputs: int, outputs: int, size: tuple[int, int], bias: bool
) -> None:
    check(inputs, outputs, size, bias)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tile",
    [
        Tile((1, 2)),
        Tile((3, 1), rows=16, inner=16),
        Tile((2, 2), rows=16, inner=64, columns=32),
        Tile((2, 4), rows=32, columns=256),
        Tile((2, 2), rows=16, inner=1024, span=3),  # filters that stay
    ],
    ids=str,
)
def test_every_tile_computes_the_same(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    for ends in ((17, 20), (20, 17)):
        monkeypatch.setitem(convolution.TILES, ends, tile)
        monkeypatch.setitem(convolution.FILTER_TILES, ends, tile)
    check(17, 20, (6, 4))


def test_patches_that_do_not_fit_are_not_made() -> None:
    tile = Tile((2, 4), rows=64)
    assert tile.fitted(6, 8) == tile
    assert tile.fitted(7, 8) == tile.fitted(6, 6) == Tile(rows=64)


@pytest.mark.slow
def test_a_long_sum_over_positions_in_parts() -> None:
    x = random(40, 1, 8, 8)
    weight = random(1, 2, 1, 3, 3, seed=1)
    slope = random(40, 2, 8, 8, seed=2)
    wanted = torch.nn.grad.conv2d_weight(x, (2, 1, 3, 3), slope, padding=1)
    parts = [each.contiguous(memory_format=torch.channels_last) for each in (x, slope)]
    found, _ = convolution.filter_gradients(*parts, weight)
    torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-3)  # 2560 terms


@pytest.mark.parametrize("size", [(7, 6), (6, 5), (2, 3)])
def test_pooling_is_torchs(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    # whole numbers, so that there are equals; and what a comparison may trip over
    x = torch.randint(-3, 3, (3, 5, *size), generator=generator).float().to(DEVICE)
    x[0, 0] = -torch.inf
    x[1, 1, :2, :2] = torch.inf
    x[2, 2, 1, 1] = torch.nan
    x = x.requires_grad_()
    expected = F.max_pool2d(x, 3, 2, 1)
    slope = random(*expected.shape)
    (wanted,) = torch.autograd.grad(expected, x, slope)
    last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    y = MaxPooling.apply(last)
    with torch.no_grad():
        without_winners = MaxPooling.apply(last)
    for found in (y, without_winners):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(torch.autograd.grad(y, last, slope)[0], wanted)


@pytest.mark.slow
def test_an_ensemble_of_impalas_layers_computes_by_the_kernels_what_vmap_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),  # of images that all networks share
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.Conv2d(16, 4, 3, stride=2),  # not for the kernels
        )

    calls: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        function = getattr(rules, name)

        def run(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return function(*args, **options)

        return run

    # on a CPU the kernels are never chosen
    monkeypatch.setattr(rules, "can_convolve", lambda x, weight, stride, *rest: stride == (1, 1))
    monkeypatch.setattr(rules, "can_pool", lambda *args, **options: True)
    for name in ("convolution", "max_pool"):
        monkeypatch.setattr(rules, name, watched(name))
    particles = ol.Ensemble(network, 2, seed=0, device=DEVICE)
    x = random(2, 3, 6, 6)
    y = particles(x)
    slopes = torch.autograd.grad(y.sin().sum(), list(particles.parameters()))
    assert calls == ["convolution", "max_pool", "convolution"]
    results = []
    for member in particles:
        alone = member(x)
        parameters = list(member.parameters())
        results.append([alone.detach(), *torch.autograd.grad(alone.sin().sum(), parameters)])
    expected = [torch.stack(parts) for parts in zip(*results, strict=True)]
    for ours, theirs in zip([y.detach(), *slopes], expected, strict=True):
        assert (ours - theirs).norm() <= 1e-5 * theirs.norm()  # float32, in another order


@pytest.mark.parametrize(
    ("stride", "padding", "side"), [(2, 1, 3), (1, 0, 3), (1, "same", 3), (1, 2, 5)]
)
def test_other_convolutions_are_left_to_torch(
    stride: int, padding: Any, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "runs_on", lambda x: True)
    x = torch.zeros(1, 3, 4, 4, dtype=torch.bfloat16)
    weight = torch.zeros(2, 3, side, side)
    assert convolution.can_convolve(x, torch.zeros(2, 3, 3, 3), 1, (1, 1), 1)
    assert not convolution.can_convolve(x, weight, stride, padding, 1)


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu() -> None:
    """The compiler refuses what the interpreter accepts, such as a name made inside of a loop."""
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, script], env=environment, check=True)
