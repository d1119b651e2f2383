"""How samples become sums: checks, targets on their grid, portions of bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..features.exact import INPUT_BITS, check_whole
from .samples import Samples, sample_hashes, sample_keys
from .sums import LABELS, Basis, HeadSums

if TYPE_CHECKING:
    from .head import ExactHead

LARGEST_WEIGHT = 16.0
LARGEST_LABEL = 1 << 20
_LARGEST_TASK = (1 << 30) - 1
_LOOKED_AT = 64  # samples of an update for which warnings are given


def sums_of(
    head: ExactHead, x: Tensor, y: Tensor, task: int | None, sample_weight: Any
) -> HeadSums | None:
    """The sums over these samples alone; None if none of them counts."""
    grid = head.grid
    basis = head.basis
    x, y, weights = checked(x, y, sample_weight, grid.device)
    if not len(y):
        return None
    columns, targets = encoded(y, task, basis)
    keys = sample_keys(x).to(grid.device)
    chosen = keys % max(1, basis.calibration) == 0
    sums = None
    kept = []
    parts = [tensor.split(grid.portion) for tensor in (x, targets, weights, chosen)]
    for rows, wanted, mass, some in zip(*parts, strict=True):
        raw = grid.raw(rows)
        features = grid.rounded(raw)
        if sums is None:
            n, _, size = raw.shape
            sums = HeadSums.empty(basis, n, size, columns, grid.device)
            _warn(head, rows[:_LOOKED_AT], y[:_LOOKED_AT], raw[:, :_LOOKED_AT])
        sums.add(features, wanted, mass)
        sums.clipped += float((raw.abs() > grid.limit).sum((0, 2)).double() @ mass)
        kept.append((features[:, some] / grid.limit).half())
    assert sums is not None
    if basis.ledger:
        names = sample_hashes(f"{basis.fingerprint} {task}", x, y, size=8)
        numbers = [int.from_bytes(name, signed=True) for name in names]
        entries = torch.tensor(numbers, device=grid.device).unsqueeze(1)
        nothing = torch.zeros(0, len(names), 0, device=grid.device)
        sums.counted["ledger"] = Samples.of(entries, weights, nothing)
    if basis.calibration:
        pairs = torch.stack([keys, columns[targets]], 1)[chosen]
        sums.counted["kept"] = Samples.of(pairs, weights[chosen], torch.cat(kept, 1))
    return sums


def _warn(head: ExactHead, x: Tensor, y: Tensor, features: Tensor) -> None:
    """Look at some samples, and warn if inputs, features or targets lose much on their grids."""
    tell = head.warnings.look_at
    tell("feature_limit", features, head.grid.limit, head.grid.bits)
    limit = getattr(head.grid.maps[0], "input_limit", None)
    if limit is not None and x.is_floating_point():
        tell("input_limit", x, limit, INPUT_BITS)
    if head.basis.target_limit is not None:
        tell("target_limit", y, head.basis.target_limit, head.basis.bits)


def encoded(y: Tensor, task: int | None, basis: Basis) -> tuple[Tensor, Tensor]:
    """The columns that targets need `[K]`, ascending, and the targets: indices into the columns
    `[B]`, or values on their grid `[B, K]`, float64."""
    limit = basis.target_limit
    if limit is None:
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.dim() != 1:
            raise TypeError(
                f"labels must be whole numbers of shape [B], got {y.dtype} {tuple(y.shape)}; for "
                "regression use targets='values'"
            )
        labels = y.long()  # torch cannot compare unsigned integers
        wrong = labels[(labels < 0) | (labels >= LARGEST_LABEL)]
        if len(wrong):
            raise ValueError(
                f"labels must lie between 0 and {LARGEST_LABEL - 1}, got {int(wrong[0])}"
            )
        number = -1 if task is None else check_whole("task", task, 0, _LARGEST_TASK)
        return (labels + (number + 1) * LABELS).unique(return_inverse=True)  # type: ignore[no-any-return]
    if task is not None:
        raise ValueError("targets='values' has one head for all tasks: leave task out")
    if not y.is_floating_point() or y.dim() not in (1, 2) or y.shape[-1] == 0:
        raise TypeError(f"values must be floats [B] or [B, K], got {y.dtype} {tuple(y.shape)}")
    values = y.double().reshape(len(y), -1)
    if not (values.abs() <= limit).all():
        raise ValueError(
            f"targets must be finite and within +-{limit}: scale them, or build the "
            "head with a larger target_limit (a power of two)"
        )
    columns = torch.arange(values.shape[1], device=y.device)
    return columns, (values / basis.target_unit).round() * basis.target_unit


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
    """Inputs `[B, ...]`, targets and weights `[B]` of the samples with a positive weight; a single
    sample may lack the first axis."""
    check_tensor("x", x)
    check_tensor("y", y)
    if y.dim() == 0:
        x = x.unsqueeze(0)
        y = y.unsqueeze(0)
    y = y.to(device)
    count = len(x) if x.dim() else 0
    if count != len(y) or count == 0:
        raise ValueError(
            f"x has {count} samples and y has {len(y)}: give at least one, and one target each"
        )
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError("x holds values that are not finite: clean the data first")
    try:
        given = 1.0 if weight is None else weight
        weights = torch.as_tensor(given, dtype=torch.float64, device=device)
    except (TypeError, ValueError) as error:
        raise TypeError(f"sample_weight must hold numbers, got {weight!r}") from error
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
    counted = weights > 0  # a sample of weight 0 does not even add its class
    if counted.all():
        return x, y, weights
    return x[counted.to(x.device)], y[counted], weights[counted]
