"""Convolutions and pooling of N networks in one kernel, against torch's for one network.

On a machine without a GPU Triton's interpreter runs the kernels (see conftest.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orderless as ol
from orderless.ensemble.precision import matrix_precision
from orderless_lab.rl.kernels import grouped, rules
from orderless_lab.rl.kernels.grouped import Geometry, GroupedConvolution, Tile
from orderless_lab.rl.kernels.pooling import MaxPooling
from orderless_lab.rl.kernels.residual import ResidualBlock
from orderless_lab.rl.kernels.shared import SharedConvolution
from orderless_lab.rl.networks import Residual

pytest.importorskip("triton", reason="Triton is made for Linux only")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {
    "same": ((5, 18), (3, 3), (1, 1), (1, 1), (6, 5)),
    "as many outputs as inputs": ((6, 6), (3, 3), (1, 1), (1, 1), (5, 4)),
    "stride 2": ((4, 3), (3, 3), (2, 2), (1, 1), (9, 8)),
    "no padding": ((17, 2), (3, 3), (2, 2), (0, 0), (7, 7)),
    "unequal sides": ((3, 4), (1, 4), (3, 1), (0, 2), (8, 5)),
    "many channels": ((70, 66), (1, 1), (1, 1), (0, 0), (2, 3)),
    "many, as many outputs": ((48, 48), (1, 1), (1, 1), (0, 0), (2, 3)),
    "whole tiles": ((16, 20), (3, 3), (1, 1), (1, 1), (5, 6)),
    "whole tiles, stride 2": ((32, 16), (3, 3), (2, 2), (1, 1), (6, 5)),
}


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """cuDNN's convolutions, which judge here, must not be in TF32."""
    with matrix_precision("float32", torch.device(DEVICE)):
        yield


LONG = Tile((5, 2), rows=16, inner=64)
# the interpreter takes a second for each; a change of the kernel is tried on all of them
FAST = "stride 2", "unequal sides"


@pytest.mark.parametrize(
    ("name", "bias"),
    [pytest.param("same", False, marks=pytest.mark.slow)]
    + [pytest.param(n, True, marks=[pytest.mark.slow] * (n not in FAST)) for n in SHAPES],
)
def test_one_kernel_is_n_convolutions(name: str, bias: bool) -> None:
    (inputs, outputs), kernel, stride, padding, size = SHAPES[name]
    n, batch, generator = 3, 2, torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE).requires_grad_()

    x = random(batch, n * inputs, *size)
    weight, offset = random(n, outputs, inputs, *kernel), random(n, outputs)
    each = [
        F.conv2d(part, w, o if bias else None, stride, padding)
        for part, w, o in zip(x.split(inputs, 1), weight, offset, strict=True)
    ]
    expected = torch.cat(each, 1)
    slope = torch.randn(expected.shape, generator=generator).to(DEVICE)
    leaves = [x, weight, *([offset] if bias else [])]
    wanted = torch.autograd.grad(expected, leaves, slope, retain_graph=True)

    wide = x.contiguous(memory_format=torch.channels_last)
    g = Geometry(n, inputs, outputs, kernel, stride, padding, "ieee")
    y = GroupedConvolution.apply(wide, weight, offset if bias else None, g)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)  # float32 sums of up to 153
    found = torch.autograd.grad(y, leaves, slope, retain_graph=True)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


TILED = {
    "neighbours in a line": Tile((1, 2)),
    "in a column": Tile((3, 1), rows=16, inner=16),
    "in a square, in two columns of programs": Tile((2, 2), rows=16, inner=64, columns=32),
    "particles in turn": Tile((2, 4), rows=32, columns=256, together=True),
    "filters that stay": Tile((2, 2), rows=16, inner=256, span=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [(3, 3), (3, 5)])
@pytest.mark.parametrize("tile", TILED.values(), ids=TILED)
def test_every_tile_computes_the_same(
    tile: Tile, kernel: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    n, batch, inputs, outputs = 3, 2, 5, 12
    g = Geometry(n, inputs, outputs, kernel, (1, 1), (1, 1), "ieee")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, n * inputs, 6, 8, generator=generator).to(DEVICE)
    weight = torch.randn(n, outputs, inputs, *kernel, generator=generator).to(DEVICE)
    bias = torch.randn(n, outputs, generator=generator).to(DEVICE)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    expected = F.conv2d(x, weight.flatten(0, 1), bias.flatten(), padding=1, groups=n)
    slope = torch.randn(expected.shape, generator=generator).to(DEVICE)
    wanted = torch.autograd.grad(expected, leaves, slope)

    for ends in ((inputs, outputs), (outputs, inputs)):
        monkeypatch.setitem(grouped.TILES, ends, tile)
        monkeypatch.setitem(grouped.FILTER_TILES, ends, tile)
    wide = x.contiguous(memory_format=torch.channels_last)
    y = GroupedConvolution.apply(wide, weight, bias, g)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)  # float32, another order
    for got, want in zip(torch.autograd.grad(y, leaves, slope), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_patches_that_do_not_fit_are_not_made() -> None:
    tile, plain = Tile((2, 4), rows=64), Tile((1, 1), rows=64)
    assert tile.fitted((6, 8), (1, 1)) == tile
    assert tile.fitted((7, 8), (1, 1)) == tile.fitted((6, 6), (1, 1)) == plain
    assert tile.fitted((6, 8), (1, 2)) == plain


def test_a_bias_may_be_part_of_a_larger_tensor() -> None:
    x, weight = torch.ones(1, 3, 2, 2, device=DEVICE), torch.zeros(3, 4, 1, 1, 1, device=DEVICE)
    bias = torch.arange(3 * 9.0, device=DEVICE).view(3, 9)[:, 2:6]
    g = Geometry(3, 1, 4, (1, 1), (1, 1), (0, 0), "ieee")
    y = GroupedConvolution.apply(x.contiguous(memory_format=torch.channels_last), weight, bias, g)
    assert torch.equal(y, bias.reshape(1, 12, 1, 1).expand_as(y))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("name", "bias"),
    [("same", True), ("same", False), ("stride 2", True), ("no padding", True)]
    + [("unequal sides", True)],
)
def test_filters_side_by_side_are_n_convolutions(
    name: str, layout: torch.memory_format, bias: bool
) -> None:
    (inputs, outputs), kernel, stride, padding, size = SHAPES[name]
    n, inputs, generator = 3, min(inputs, 5), torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    x = random(7, inputs, *size).contiguous(memory_format=layout)
    weight, offset = random(n, outputs, inputs, *kernel), random(n, outputs)
    leaves = [weight.requires_grad_(), *([offset.requires_grad_()] if bias else [])]
    flat = weight.flatten(0, 1), offset.flatten() if bias else None
    expected = F.conv2d(x, *flat, stride, padding)
    slope = random(*expected.shape)
    wanted = torch.autograd.grad(expected, leaves, slope, retain_graph=True)

    g = Geometry(n, inputs, outputs, kernel, stride, padding, "ieee")
    y = SharedConvolution.apply(x, weight, offset if bias else None, g)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)  # float32 sums, another order
    found = torch.autograd.grad(y, leaves, slope, retain_graph=True)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_long_sum_over_positions_in_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, 8, 8, generator=generator).to(DEVICE)
    weight = torch.randn(2, 1, 1, 3, 3, generator=generator).to(DEVICE).requires_grad_()
    slope = torch.randn(40, 2, 8, 8, generator=generator).to(DEVICE)
    expected = F.conv2d(x, weight.flatten(0, 1), padding=1)
    (wanted,) = torch.autograd.grad(expected, weight, slope)
    g = Geometry(2, 1, 1, (3, 3), (1, 1), (1, 1), "ieee")
    y = SharedConvolution.apply(x, weight, None, g)
    (found,) = torch.autograd.grad(y, weight, slope)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)  # 2560 terms


# the interpreter takes half a minute for the last one, a GPU no time
INTERPRETED = [pytest.mark.sweep] * (DEVICE == "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "tile"),
    [(16, Tile()), (32, Tile()), (16, LONG), pytest.param(32, LONG, marks=INTERPRETED)],
)
def test_a_residual_block_in_one_piece_is_that_of_n_networks(
    channels: int, tile: Tile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(grouped.TILES, (channels, channels), tile)
    n, generator = 2, torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        values = scale * torch.randn(*shape, generator=generator).to(DEVICE)
        return values.requires_grad_()

    x, narrow = random(2, n * channels, 5, 4), 1 / (3 * channels**0.5)
    weights = [random(n, channels, channels, 3, 3, scale=narrow) for _ in range(2)]
    biases = [random(n, channels) for _ in range(2)]
    each = []
    for number, part in enumerate(x.split(channels, 1)):
        inner = F.conv2d(F.relu(part), weights[0][number], biases[0][number], padding=1)
        outer = F.conv2d(F.relu(inner), weights[1][number], biases[1][number], padding=1)
        each.append(part + outer)
    expected = torch.cat(each, 1)
    leaves = [x, weights[0], biases[0], weights[1], biases[1]]
    slope = random(*expected.shape).detach()
    wanted = torch.autograd.grad(expected, leaves, slope, retain_graph=True)

    wide = x.contiguous(memory_format=torch.channels_last)
    g = Geometry(n, channels, channels, (3, 3), (1, 1), (1, 1), "ieee")
    y = ResidualBlock.apply(wide, *leaves[1:], g)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)  # float32, another order
    found = torch.autograd.grad(y, leaves, slope, retain_graph=True)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_residual_block_does_not_hide_what_is_not_a_number() -> None:
    x = torch.ones(1, 16, 3, 3, device=DEVICE).contiguous(memory_format=torch.channels_last)
    x[0, 0, 1, 1] = torch.nan
    weight, bias = torch.ones(1, 16, 16, 3, 3, device=DEVICE), torch.zeros(1, 16, device=DEVICE)
    g = Geometry(1, 16, 16, (3, 3), (1, 1), (1, 1), "ieee")
    assert ResidualBlock.apply(x, weight, bias, weight, bias, g).isnan().all()


POOLS = {
    "impala's": ((3, 3), (2, 2), (1, 1), (7, 6)),
    "plain": ((2, 2), (2, 2), (0, 0), (6, 5)),
    "unequal": ((1, 4), (2, 1), (0, 2), (5, 7)),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_torchs(name: str) -> None:
    kernel, stride, padding, size = POOLS[name]
    generator = torch.Generator().manual_seed(0)
    # whole numbers, so that there are equals; and what a comparison may trip over
    x = torch.randint(-3, 3, (3, 5, *size), generator=generator).float().to(DEVICE)
    x[0, 0], x[1, 1, :2, :2], x[2, 2, 1, 1] = -torch.inf, torch.inf, torch.nan
    x = x.requires_grad_()
    expected = F.max_pool2d(x, kernel, stride, padding)
    slope = torch.randn(expected.shape, generator=generator).to(DEVICE)
    (wanted,) = torch.autograd.grad(expected, x, slope)

    last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    y = MaxPooling.apply(last, Geometry(1, 1, 1, kernel, stride, padding))
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    (found,) = torch.autograd.grad(y, last, slope)
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        again = MaxPooling.apply(last, Geometry(1, 1, 1, kernel, stride, padding))
    torch.testing.assert_close(again, expected, rtol=0, atol=0, equal_nan=True)


def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(1, 2, 4, 4, device=DEVICE).contiguous(memory_format=torch.channels_last)
    y = MaxPooling.apply(x.requires_grad_(), Geometry(1, 1, 1, (2, 2), (2, 2), (0, 0)))
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_pixels_that_lie_far_apart(axis: int) -> None:
    """Strides of 2^30: the second and third entry of the axis lie beyond 31 bits.

    A CPU has no memory behind the numbers in between, a GPU has.
    """
    room = 2**31 + 2**10
    if DEVICE == "cuda" and torch.cuda.mem_get_info()[0] < 5 * room:
        pytest.skip("needs 10 GB of GPU memory")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 3, 3, generator=generator).to(DEVICE)
    weight = torch.randn(2, 4, 3, 2, 2, generator=generator).to(DEVICE)
    strides = [*x.movedim(axis, 0).contiguous()[0].stride()]
    strides.insert(axis, 2**30)
    apart = torch.empty(room, device=DEVICE).as_strided(x.shape, strides).copy_(x)
    g = Geometry(2, 3, 4, (2, 2), (1, 1), (0, 0), "ieee")
    y = SharedConvolution.apply(apart, weight, None, g)
    torch.testing.assert_close(y, SharedConvolution.apply(x, weight, None, g))


@pytest.mark.slow
def test_an_ensemble_of_impala_layers_computes_by_the_kernels_what_vmap_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.MaxPool2d(3, 2, 1),
            Residual(16),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
        )

    def watched(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            made.append(name)
            return kernel(*args, **options)

        return run

    # on the CPU the kernels are never chosen; the interpreter multiplies exactly
    monkeypatch.setattr(rules, "can_group", lambda *args: True)
    monkeypatch.setattr(rules, "can_pool", lambda *args, **options: True)
    monkeypatch.setattr(rules, "can_share", lambda *args: True)
    for name in ("grouped_convolution", "shared_convolution", "max_pool", "residual_blocks"):
        monkeypatch.setattr(rules, name, watched(name, getattr(rules, name)))
    found = []
    for fast in (True, False):
        particles = ol.Ensemble(network, 2, seed=0, fast=fast, device=DEVICE)
        x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE)
        y = particles(x)
        slopes = torch.autograd.grad(y.sin().sum(), list(particles.parameters()))
        found.append([y.detach(), *slopes])
    kernels = ["shared_convolution", "max_pool", "residual_blocks", "grouped_convolution"]
    assert made == kernels
    for got, want in zip(*found, strict=True):
        # tf32 on a GPU; float32 in another order in the interpreter
        assert (got - want).norm() <= (1e-2 if DEVICE == "cuda" else 1e-5) * want.norm()
