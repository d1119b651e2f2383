"""The convolution of N networks in one kernel, against `F.conv2d`.

On a machine without a GPU Triton's interpreter runs the kernel (see conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from orderless.particles.grouped import Geometry, GroupedConvolution
from orderless.particles.precision import matrix_precision

pytest.importorskip("triton", reason="Triton is made for Linux only")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {
    "same": ((5, 18), (3, 3), (1, 1), (1, 1), (6, 5)),
    "as many outputs as inputs": ((6, 6), (3, 3), (1, 1), (1, 1), (5, 4)),
    "stride 2": ((4, 3), (3, 3), (2, 2), (1, 1), (9, 8)),
    "no padding": ((17, 2), (3, 3), (2, 2), (0, 0), (7, 7)),
    "unequal sides": ((3, 4), (1, 4), (3, 1), (0, 2), (8, 5)),
    "many channels": ((70, 66), (1, 1), (1, 1), (0, 0), (2, 3)),
}


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """cuDNN's convolutions, which judge here, must not be in TF32."""
    with matrix_precision("float32", torch.device(DEVICE)):
        yield


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", SHAPES)
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
    wanted = torch.autograd.grad(expected, leaves, slope)

    wide = x.contiguous(memory_format=torch.channels_last)
    g = Geometry(n, inputs, outputs, kernel, stride, padding)
    y = GroupedConvolution.apply(wide, weight, offset if bias else None, g, "ieee")
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)  # float32 sums of up to 153
    found = torch.autograd.grad(y, leaves, slope)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
