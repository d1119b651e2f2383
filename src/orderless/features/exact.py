"""Linear maps whose floating-point sums have no rounding, and random ReLU features of one.

A float32 sum depends on the order of its terms, hence on the kernel, on the size of the batch, on a
row's place in it and on the device. If inputs are multiples of one power of two, a row's weights
multiples of another, and the absolute products of the row add up to less than 2^24 units, then
every product and every partial sum, in any order, is an integer that float32 represents exactly. So
all kernels agree: MKL, cuBLAS, any blocking, any number of threads.

Inputs get 8 bits and a sign. That leaves 2^16 units for the sum of a row's absolute weights, about
9 bits per weight for a 6 x 6 colour filter and 6 for a 784-pixel image: enough for *random*
weights, which may as well be drawn on a grid. Rows of more than 4096 inputs use float64 (2^53).
"""

import math
from typing import Any, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INPUT_BITS = 8
_WHOLE = {torch.float32: 24, torch.float64: 53}  # integers up to 2^this are exact


def dtype_for(in_features: int) -> torch.dtype:
    """The smallest type in which a row of `in_features` weights can be exact and fine enough."""
    return torch.float32 if in_features <= 4096 else torch.float64


def round_inputs(x: Tensor, limit: float, dtype: torch.dtype) -> Tensor:
    """Round x to multiples of `limit / 256` and clip it at +-`limit`; NaN stays NaN."""
    unit = limit / 2**INPUT_BITS
    x = x if x.dtype == torch.float64 else x.float()
    return (x / unit).round_().clamp(-(2**INPUT_BITS), 2**INPUT_BITS).to(dtype).mul_(unit)


def round_weights(weight: Tensor, bias: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Round weight `[O, I]` and bias `[O]` (float64) to grids that make `x W^T + b` exact.

    Each row has its own unit u, the smallest power of two with
    (sum |w| + |b| / limit) / u + (I + 1) / 2 <= 2^(24 - 8); the halves bound the rounding.
    """
    dtype = dtype_for(weight.shape[1])
    room = 2 ** (_WHOLE[dtype] - INPUT_BITS) - (weight.shape[1] + 1) / 2
    size = weight.abs().sum(1) + bias.abs() / limit
    unit = torch.ldexp(torch.ones_like(size), torch.frexp(size / room).exponent)
    bias_unit = unit * (limit / 2**INPUT_BITS)
    rounded = (weight / unit.unsqueeze(1)).round() * unit.unsqueeze(1)
    return rounded.to(dtype), ((bias / bias_unit).round() * bias_unit).to(dtype)


def check_limit(limit: float, name: str = "input_limit") -> float:
    """Raise `ValueError` if a limit is no power of two, by which scaling is exact."""
    if not isinstance(limit, int | float) or math.frexp(limit)[0] != 0.5:
        raise ValueError(f"{name} must be a power of two such as 4 or 16, got {limit!r}")
    return float(limit)


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A setting as an int. Raise if it is no whole number within its bounds."""
    between = f"of at least {least}" if most is None else f"between {least} and {most}"
    whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    if not whole or int(value) < least or (most is not None and int(value) > most):
        raise ValueError(f"{name} must be a whole number {between}, got {value!r}")
    return int(value)


class RandomReLU(nn.Module):
    """phi(x) = max(W x + b, 0), W ~ N(0, 1 / in_features), b ~ N(0, bias_scale^2). Never trained.

    Input `[B, ...]` is flattened to `[B, in_features]`; output `[B, out_features]`, the same to the
    bit in any batch and on any device (`exact`).

    Args:
        input_limit: a power of two; inputs are clipped to +-this and rounded to 1/256 of it.
        bias_scale: with 0 features are straight lines through the origin, which suits images, whose
            brightness sets the scale of all inputs, and the outputs of networks.

    >>> RandomReLU(3, 100)(torch.rand(2, 3)).shape
    torch.Size([2, 100])
    """

    exact = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias_scale: float = 0.5,
        input_limit: float = 4.0,
    ) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                "RandomReLU needs at least one input and one feature, got "
                f"in_features={in_features}, out_features={out_features}"
            )
        if bias_scale < 0:
            raise ValueError(f"bias_scale must not be negative, got {bias_scale}")
        self.in_features = in_features
        self.out_features = out_features
        self.bias_scale = bias_scale
        self.input_limit = check_limit(input_limit)
        dtype = dtype_for(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype), False)
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights from torch's generator."""
        shape = self.out_features, self.in_features
        weight = torch.randn(shape, dtype=torch.float64) / self.in_features**0.5
        bias = torch.randn(self.out_features, dtype=torch.float64) * self.bias_scale
        weight, bias = round_weights(weight, bias, self.input_limit)
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2:
            raise ValueError(
                f"samples come in batches [B, ...], got one of shape {list(x.shape)}: use x[None]"
            )
        x = x.flatten(1)
        if x.shape[1] != self.in_features:
            raise ValueError(f"each sample must have {self.in_features} values, got {x.shape[1]}")
        x = round_inputs(x, self.input_limit, self.weight.dtype)
        return F.linear(x, self.weight, self.bias).relu_()

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, bias_scale={self.bias_scale}, "
            f"input_limit={self.input_limit}"
        )
