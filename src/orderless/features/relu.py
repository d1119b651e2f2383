"""Random ReLU features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .exact import check_limit, dtype_for, round_inputs, round_weights


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
