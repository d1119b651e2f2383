"""Samples on their way into the sums: checked, their features and targets rounded to a grid.

On the grid the bits of a sample do not depend on the batch, the order or other samples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.device import matrix_precision
from ..features.exact import INPUT_BITS, check_limit, check_whole
from ..io import digest
from .sums import LABELS, Basis, HeadSums, Samples, sample_hashes, sample_keys

if TYPE_CHECKING:
    from .head import ExactHead

Method = TypeVar("Method", bound=Callable[..., Any])
LARGEST_WEIGHT = 16.0
LARGEST_LABEL = 1 << 20
_LARGEST_TASK = (1 << 30) - 1
_LOOKED_AT = 64  # samples of an update for which warnings are given
_UNLIKELY = 1 << 16  # labels below are not taken for ids


def in_plain_mode(method: Method) -> Method:
    """Run a head's method outside of autocast and TF32, which would compute features in less
    precision, autograd, and inference mode, whose sums could not be changed later."""

    @wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = self.grid.device
        precise = matrix_precision("float32", device) if device.type == "cuda" else nullcontext()
        no_autocast = torch.autocast(device.type, enabled=False)
        with torch.inference_mode(False), torch.no_grad(), no_autocast, precise:
            return method(self, *args, **kwargs)

    return run  # type: ignore[return-value]


class GridFeatures:
    """The outputs of N maps `[N, B, M]` rounded to multiples of `limit / 2^bits` and clipped.

    The maps are copies that nothing changes: a frozen module per particle, run one after another.

    The bits of an `exact` map (those in `orderless.features`, except backbones) never depend on the
    batch. For other maps, blocks are padded to `block_size` rows, so that all samples use the same
    kernels. Then only a kernel that treats rows differently by their position makes a difference
    (on CPUs none did at multiples of 8; on GPUs one that splits sums unevenly between tiles might,
    by one unit of the grid at a rounding boundary); `block_size=1` excludes that too.
    """

    def __init__(self, particles: Ensemble, limit: float, bits: int, block_size: int) -> None:
        if particles.precision != "float32":
            raise ValueError(
                "features that are rounded to a grid must not be computed in reduced precision: "
                f"use an ensemble with precision='float32', got {particles.precision!r}"
            )
        self.limit = check_limit(limit, "feature_limit")
        self.bits = check_whole("bits", bits, 1, 16)
        self.block_size = check_whole("block_size", block_size, 1)
        self._take(particles)
        first = self.maps[0]
        # a map may split its batches into blocks itself
        self.padded = not (getattr(first, "exact", False) or getattr(first, "blocks_itself", False))
        self._digest = digest([repr(first), self.limit, self.bits, particles.state_dict()])

    def _take(self, particles: Ensemble) -> None:
        self.device = particles.device
        # rows that are computed at a time, in bounded memory
        self.portion = 4096 if self.device.type == "cuda" else 1024
        self.maps = [particles[i].requires_grad_(False).eval() for i in range(particles.n)]

    def moved(self, particles: Ensemble) -> Self:
        """The same grid for the same maps on another device."""
        result = copy.copy(self)
        result._take(particles)
        return result

    @property
    def fingerprint(self) -> str:
        """A hash of the maps and the grid, followed by what else affects the bits of maps that are
        not `exact`: heads with equal ones can be merged."""
        conditions = getattr(self.maps[0], "fingerprint", None)
        parts = [self._digest]
        if callable(conditions):
            parts.append(conditions(self.device))
        if self.padded:
            parts.append(f"blocks of {self.block_size}")
        return "-".join(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """Features of samples `[N, B, M]`, on the grid."""
        return on_grid(self.raw(x), self.limit, self.bits)

    def raw(self, x: Tensor) -> Tensor:
        """Features before rounding: `[N, B, M]`, float32 or float64."""
        size = self.block_size if self.padded else self.portion
        features = torch.cat([self._block(part) for part in x.split(size)], dim=1)
        if not features.isfinite().all():
            raise ValueError("the features of these samples are not finite: clean the data")
        return features if features.dtype == torch.float64 else features.float()

    def _block(self, x: Tensor) -> Tensor:
        """Every map's features of a few samples; errors name the fix."""
        count = len(x)
        if self.padded:
            x = x.float() if x.dtype == torch.uint8 else x
            filler = x[:1] if count else x.new_zeros(1, *x.shape[1:])
            missing = self.block_size - count
            x = torch.cat([x, filler.expand(missing, *x.shape[1:])]) if missing else x
        try:
            pooled = getattr(self.maps[0], "pooled", None)
            if pooled is None:
                outputs = [module(x) for module in self.maps]
            else:  # by the frozen network that all maps share
                common = pooled(x)
                outputs = [module.projected(common) for module in self.maps]  # type: ignore[operator]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ValueError(
                f"the feature map cannot take samples of shape {list(x.shape[1:])}, {x.dtype} (a "
                "single sample is x[None], most networks take x.float(), and pixels as "
                f"x.float() / 255): {error}"
            ) from error
        return torch.stack([checked_features(output, len(x)) for output in outputs])[:, :count]


def on_grid(features: Tensor, limit: float, bits: int) -> Tensor:
    """Features rounded to multiples of limit / 2^bits and clipped."""
    scale = 2.0**bits / limit
    return (features * scale).round_().clamp_(-limit * scale, limit * scale).div_(scale)


def checked_features(features: Any, count: int) -> Tensor:
    """Raise `ValueError` if a map's output is no matrix with a row per sample."""
    if isinstance(features, Tensor) and features.dim() == 2 and len(features) == count:
        return features
    got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    raise ValueError(f"a feature map must give [B, M] for B={count}, got {got}: add nn.Flatten()")


def remark(what: str, values: Tensor, limit: float, bits: int) -> str | None:
    """What is wrong with a grid of multiples of limit / 2^bits up to the limit for these inputs,
    features or targets, if clipping or rounding loses much of them, and what to do."""
    values = values.double()
    largest = values.abs().max().item() if values.numel() else 0.0
    if largest == 0.0:
        return None
    clipped = (values.abs() > limit).double().mean().item()
    # in units of the largest, whose square may be too small or too large for a float64
    inside = values.clamp(-limit, limit) / largest
    unit = limit / 2.0**bits / largest
    lost = (inside - (inside / unit).round() * unit).square().mean()
    share = (lost / (values / largest).square().mean()).item()
    if clipped > (0.1 if what == "input" else 0.01):
        how = f"{100 * clipped:.0f}% of the {what}s lie beyond +-{limit:g} and are clipped"
    elif share > 1e-3:
        how = f"the {what}s are so small that rounding takes {100 * share:.2g}% of their squares"
    else:
        return None
    better = 2.0 ** math.ceil(math.log2(2.0 * largest))  # at least twice the largest seen
    return (
        f"{how}: scale the data (an estimator: set input_mean and input_scale, or those of the "
        f"target), or set {what}_limit={better!r}"
    )


class Inputs(nn.Flatten):
    """phi(x) = x: the inputs are features already."""

    exact = True


def as_ensemble(features: Ensemble | nn.Module | str) -> Ensemble:
    """An ensemble unchanged, or a single map as an ensemble of one."""
    if isinstance(features, Ensemble):
        return features
    if features == "linear":
        features = Inputs()
    if not isinstance(features, nn.Module):
        raise TypeError(f"features must be an Ensemble, a module or 'linear', got {features!r}")
    parameter = next(features.parameters(), None)
    return Ensemble.from_modules([features], device=None if parameter is None else parameter.device)


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
        named = y if head.label_names is None else head.label_names.to(y.device)[y]
        names = sample_hashes(f"{basis.fingerprint} {task}", x, named)
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
        remarks["target"] = remark("target", y[:_LOOKED_AT], head.basis.target_limit, grid.bits)
    largest = int(columns.remainder(LABELS).max())  # of values, their number less 1
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
