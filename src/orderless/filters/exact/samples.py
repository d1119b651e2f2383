"""Checks of the samples given to `update` and `forget`."""

from typing import Any

import torch
from torch import Tensor

LARGEST_WEIGHT = 16.0


def check_tensor(name: str, value: Any) -> None:
    """Raise `TypeError` if a value is not a dense tensor of real numbers."""
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise TypeError(
            f"{name} must be a tensor, got {kind}: use torch.as_tensor, and number labels that are "
            "strings"
        )
    if value.is_complex() or value.layout != torch.strided:
        raise TypeError(f"{name} must hold real numbers, densely, got {value.dtype} {value.layout}")


def checked(
    x: Tensor, y: Tensor, weight: Any, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs `[B, ...]`, targets and weights `[B]`; a single sample may lack the first axis."""
    check_tensor("x", x)
    check_tensor("y", y)
    if y.dim() == 0:
        x, y = x.unsqueeze(0), y.unsqueeze(0)
    count, y = len(x) if x.dim() else 0, y.to(device)
    if count != len(y) or count == 0:
        raise ValueError(
            f"x has {count} samples and y has {len(y)}: give at least one, and one target each"
        )
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError("x holds values that are not finite: clean the data first")
    if weight is None:
        return x, y, torch.ones(count, dtype=torch.float64, device=device)
    weights = torch.as_tensor(weight, dtype=torch.float64, device=device)
    weights = weights.expand(count) if weights.dim() == 0 else weights
    if tuple(weights.shape) != (count,):
        raise ValueError(
            f"sample_weight must be [{count}], one per sample, got {tuple(weights.shape)}"
        )
    fine = (weights >= 0) & (weights <= LARGEST_WEIGHT) & (weights * 16 == (weights * 16).round())
    if not fine.all():
        raise ValueError(
            "sample_weight must lie between 0 and 16 in multiples of 1/16, which keeps sums exact, "
            f"got {weights[~fine][0].item():g}"
        )
    return x, y, weights
