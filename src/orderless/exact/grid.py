"""Features on a grid, whose bits do not depend on the batch, the order or other samples.

A grid that loses too much by clipping or rounding gives a warning, once per head and limit.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.precision import matrix_precision
from ..features.exact import check_limit, check_whole, round_inputs
from ..io import digest
from .targets import Classes, Values

# the shares of clipped values, and of squares lost by rounding, above which a warning is given
_CLIPPED = {"input_limit": 0.1, "feature_limit": 0.01, "target_limit": 0.0}
_ROUNDED = {"input_limit": 1e-3, "feature_limit": 1e-4, "target_limit": 1e-4}
_LOOKED_AT = 64  # samples of an update for which warnings are given
_PACKAGE = str(Path(__file__).parents[1])
Method = TypeVar("Method", bound=Callable[..., Any])


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


class Block(NamedTuple):
    """Features of a block `[N, B, M]`: on the grid, before rounding, and which were clipped."""

    features: Tensor
    raw: Tensor
    clipped: Tensor


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
        self.bits = check_whole("bits", bits, 1, 20)
        self.block_size = check_whole("block_size", block_size, 1)
        self.device = particles.device
        self.maps = [particles[i].requires_grad_(False).eval() for i in range(particles.n)]
        self.scale = 2.0**bits / limit
        first = self.maps[0]
        self.input_limit = getattr(first, "input_limit", None)
        # a map may split its batches into blocks itself
        self.padded = not (getattr(first, "exact", False) or getattr(first, "blocks_itself", False))
        self.fingerprint = self._fingerprint(particles.state_dict())

    def of(self, particles: Ensemble) -> GridFeatures:
        """The same grid for other maps."""
        return GridFeatures(particles, self.limit, self.bits, self.block_size)

    def blocks(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Rows in portions of bounded memory."""
        size = self.block_size
        if not self.padded:
            size = 4096 if self.device.type == "cuda" else 1024
        return zip(*[tensor.split(size) for tensor in tensors], strict=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Features of one block `[N, B, M]` on the grid."""
        return self.measured(x).features

    def measured(self, x: Tensor) -> Block:
        """The same with the features before rounding, and which were clipped."""
        count = len(x)
        x = x.float() if x.dtype == torch.uint8 and self.padded else x
        missing = max(1, self.block_size if self.padded else 0) - count
        if missing > 0:
            filler = x[:1] if count else x.new_zeros(1, *x.shape[1:])
            x = torch.cat([x, filler.expand(missing, *x.shape[1:])])
        features = torch.stack([checked_features(part, x) for part in self._run(x)])
        features = features[:, :count]
        if not features.isfinite().all():
            bad = (~features.isfinite()).any(2).any(0).nonzero()[0].item()
            raise ValueError(
                f"the features of sample {bad} of a block of {count} are not finite: clean the data"
            )
        features = features if features.dtype == torch.float64 else features.float()
        largest = 2.0**self.bits
        whole = (features * self.scale).round_()
        beyond = whole.abs() > largest
        return Block(whole.clamp_(-largest, largest).div_(self.scale), features, beyond)

    def _run(self, x: Tensor) -> list[Any]:
        """Every map's features of one block; errors name the fix."""
        try:
            pooled = getattr(self.maps[0], "pooled", None)
            if pooled is None:
                return [module(x) for module in self.maps]
            common = pooled(x)  # by the frozen network that all maps share
            return [module.projected(common) for module in self.maps]  # type: ignore[operator]
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            hint = "a single sample is x[None]"
            if x.dtype not in (torch.float32, torch.int64):
                hint = "most networks take x.float(), and pixels as x.float() / 255"
            raise ValueError(
                f"the feature map cannot take samples of shape {list(x.shape[1:])}, {x.dtype} "
                f"({hint}): {error}"
            ) from error

    def _fingerprint(self, state: dict[str, Tensor]) -> str:
        """A hash of the maps and the grid: heads with equal ones can be merged. It is followed by
        what else affects the bits of maps that are not `exact`."""
        first = self.maps[0]
        parts = [digest([repr(first), self.limit, self.bits, state])]
        conditions = getattr(first, "fingerprint", None)
        if callable(conditions):
            parts.append(conditions(self.device))
        return "-".join([*parts, f"blocks of {self.block_size}"] if self.padded else parts)


def checked_features(features: Any, x: Tensor) -> Tensor:
    """Raise `ValueError` if a map's output is no matrix with a row per sample."""
    if isinstance(features, Tensor) and features.dim() == 2 and len(features) == len(x):
        return features
    got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    raise ValueError(f"a feature map must give [B, M] for B={len(x)}, got {got}: add nn.Flatten()")


class GridWarnings:
    """The warnings of a head, each given once."""

    def __init__(self) -> None:
        self.told: set[str] = set()  # names of settings
        self.advice: dict[str, str] = {}  # by setting, from an estimator with settings of its own

    def tell(self, setting: str, message: str) -> None:
        if setting not in self.told:
            self.told.add(setting)
            warnings.warn(message, stacklevel=_outside())

    def look_at(
        self,
        grid: GridFeatures,
        kind: Classes | Values,
        x: Tensor,
        y: Tensor,
        targets: Tensor,
        block: Block,
    ) -> None:
        """Warn if inputs, features or targets lose much on their grids; y are those before it."""
        some = slice(_LOOKED_AT)
        limit = grid.input_limit
        if limit is not None and x.is_floating_point():
            inside = round_inputs(x[some], limit, torch.float64)
            self.compare("inputs", x[some], inside, limit, "input_limit")
        features = block.features[:, some]
        self.compare("features", block.raw[:, some], features, grid.limit, "feature_limit")
        if isinstance(kind, Values):
            values = y[some].double().reshape(targets[some].shape)
            self.compare("targets", values, targets[some], kind.limit, "target_limit")

    def compare(self, what: str, raw: Tensor, rounded: Tensor, limit: float, setting: str) -> None:
        """Compare values with the rounded ones on a grid that ends at +-limit."""
        if setting in self.told or not raw.any():
            return
        raw = raw.double()
        largest = raw.abs().max()
        clipped = (raw.abs() > limit).double().mean().item()
        # in units of the largest, whose square may be too small or too large for a float64
        lost = ((raw.clamp(-limit, limit) - rounded) / largest).square().sum()
        share = (lost / (raw / largest).square().sum()).item()
        if clipped > _CLIPPED[setting]:
            how = f"{100 * clipped:.0f} % of the {what} lie beyond +-{limit:g} and are clipped"
        elif share > _ROUNDED[setting]:
            how = (
                f"the {what} are so small that rounding takes {100 * share:.2g} % of their squares"
            )
        else:
            return
        # a power of two, at least twice the largest value seen
        better = 2.0 ** math.ceil(math.log2(2.0 * largest.item()))
        advice = self.advice.get(setting, f"scale them, or set {setting}={better!r}")
        self.tell(setting, f"{how}: {advice}")


def _outside() -> int:
    """The level of the nearest caller outside of this package, for `warnings.warn` above."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level += 1
        frame = frame.f_back
    return level


class _Inputs(nn.Module):
    """phi(x) = x: the inputs are features already."""

    exact = True

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class _Body(nn.Module):
    """A module without parameters, with one added, as an ensemble requires."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for name in ("exact", "blocks_itself", "fingerprint"):
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))
        self.nothing = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


def as_ensemble(features: Ensemble | nn.Module | str) -> Ensemble:
    """An ensemble unchanged, or a single map as an ensemble of one."""
    if isinstance(features, Ensemble):
        return features
    if features == "linear":
        features = _Inputs()
    if not isinstance(features, nn.Module):
        raise TypeError(f"features must be an Ensemble, a module or 'linear', got {features!r}")
    parameter = next(features.parameters(), None)
    if parameter is None:
        return Ensemble.from_modules([_Body(features)])
    return Ensemble.from_modules([features], device=parameter.device)
