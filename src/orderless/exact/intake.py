"""How samples become sums: checks, targets on their grid, portions of bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..features.exact import INPUT_BITS, check_whole
from .grid import on_grid, remark
from .samples import Samples, sample_hashes, sample_keys
from .sums import LABELS, Basis, HeadSums

if TYPE_CHECKING:
    from .head import ExactHead

LARGEST_WEIGHT = 16.0
LARGEST_LABEL = 1 << 20
_LARGEST_TASK = (1 << 30) - 1
_LOOKED_AT = 64  # samples of an update for which warnings are given
_UNLIKELY = 1 << 16  # labels below are not taken for ids


def sums_of(
    head: ExactHead, x: Tensor, y: Tensor, task: int | None, weights: Tensor
) -> tuple[HeadSums, dict[str, str]]:
    """The sums over these samples alone, and what to remark about them."""
    grid = head.grid
    basis = head.basis
    if task is not None:
        task = check_whole("task", task, 0, _LARGEST_TASK)
    columns, targets = encoded(y, task, basis)
    parts = [tensor.split(grid.portion) for tensor in (x, targets, weights)]
    sums = None
    kept = []
    for rows, wanted, mass in zip(*parts, strict=True):
        raw = grid.raw(rows)
        features = on_grid(raw, grid.limit, grid.bits)
        if sums is None:
            sums = HeadSums.empty(basis, len(raw), raw.shape[2], columns)
            told = _remarks(head, rows, y, raw, columns)
        sums.add(features, wanted, mass)
        if basis.calibration:
            keys = torch.stack([sample_keys(rows).to(grid.device), columns[wanted]], 1)
            some = keys[:, 0] % basis.calibration == 0
            # as exact as the sums: where few samples are fitted closely, what is left out is small
            rows_kept = (features[:, some] / grid.limit).float()
            kept.append(Samples(keys[some], mass[some], rows_kept))
    assert sums is not None
    if basis.ledger:
        names = sample_hashes(f"{basis.fingerprint} {task}", x, y)
        numbers = [int.from_bytes(name[:8], signed=True) for name in names]
        entries = torch.tensor(numbers, device=grid.device).unsqueeze(1)
        nothing = torch.zeros(0, len(names), 0, device=grid.device)
        sums.counted["ledger"] = Samples.of([Samples(entries, weights, nothing)])
    if basis.calibration:
        sums.counted["kept"] = Samples.of(kept)
    return sums, told


def _remarks(head: ExactHead, x: Tensor, y: Tensor, raw: Tensor, columns: Tensor) -> dict[str, str]:
    """What seems wrong with some samples, by the name of what it is about; look at a few."""
    grid = head.grid
    input_limit = getattr(grid.maps[0], "input_limit", None)
    remarks = {"feature": remark("feature", raw[:, :_LOOKED_AT], grid.limit, grid.bits)}
    if input_limit is not None and x.is_floating_point():
        remarks["input"] = remark("input", x[:_LOOKED_AT], input_limit, INPUT_BITS)
    if head.basis.target_limit is not None:
        limit = head.basis.target_limit
        remarks["target"] = remark("target", y[:_LOOKED_AT], limit, grid.bits)
        return {name: text for name, text in remarks.items() if text}
    largest = int(columns.remainder(LABELS).max())
    if head.classes is None and largest >= max(_UNLIKELY, 100 * len(columns)):
        remarks["labels"] = (
            f"a label is {largest}, but there are {len(columns)} different ones, and predictions "
            f"will have {largest + 1} columns: number the labels from 0 if these are ids, or say "
            "how many classes there are"
        )
    return {name: text for name, text in remarks.items() if text}


def encoded(y: Tensor, task: int | None, basis: Basis) -> tuple[Tensor, Tensor]:
    """The columns that targets need `[K]`, ascending, and the targets: indices into the columns
    `[B]`, or values on their grid `[B, K]`, float64."""
    limit = basis.target_limit
    if limit is None:
        if y.is_floating_point() or y.dtype == torch.bool or y.dim() != 1:
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
        first = 0 if task is None else (task + 1) * LABELS
        return (labels + first).unique(return_inverse=True)  # type: ignore[no-any-return]
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
    """Inputs `[B, ...]`, targets and weights `[B]` of the samples with a positive weight."""
    check_tensor("x", x)
    check_tensor("y", y)
    if not x.dim() or not y.dim() or len(x) != len(y) or not len(y):
        raise ValueError(
            f"x has shape {list(x.shape)} and y {list(y.shape)}: give at least one sample, and one "
            "target each"
        )
    if not x.isfinite().all():
        raise ValueError("x holds values that are not finite: clean the data first")
    weights = torch.as_tensor(1.0 if weight is None else weight, dtype=torch.float64, device=device)
    if weights.dim() and weights.shape != (len(y),):
        raise ValueError(f"sample_weight must be [{len(y)}], got {list(weights.shape)}")
    weights = weights.expand(len(y))
    fine = (weights >= 0) & (weights <= LARGEST_WEIGHT) & (weights * 16 == (weights * 16).round())
    if not fine.all():
        raise ValueError(
            "sample_weight must lie between 0 and 16 in multiples of 1/16, which keeps sums exact, "
            f"got {weights[~fine][0].item():g}"
        )
    counted = weights > 0  # a sample of weight 0 does not even add its class
    return x[counted.to(x.device)], y.to(device)[counted], weights[counted]
