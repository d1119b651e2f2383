"""Features on a grid, whose bits do not depend on the batch, the order or other samples.

A grid that loses too much by clipping or rounding gives a warning, once per filter and limit.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..features.exact import check_limit

# the shares of clipped values, and of squares lost by rounding, above which a warning is given
_CLIPPED = {"input_limit": 0.1, "feature_limit": 0.01, "target_limit": 0.0}
_ROUNDED = {"input_limit": 1e-3, "feature_limit": 1e-4, "target_limit": 1e-4}


class Block(NamedTuple):
    """Features of a block `[N, B, M]`: on the grid, before rounding, and which were clipped."""

    features: Tensor
    raw: Tensor
    clipped: Tensor


class GridFeatures:
    """An ensemble's outputs `[N, B, M]` rounded to multiples of `limit / 2^bits` and clipped.

    The bits of an `exact` map (those in `orderless.features`, except backbones) never depend on the
    batch. For other maps, blocks are padded to `block_size` rows, so that all samples use the same
    kernels. Then only a kernel that treats rows differently by their position makes a difference
    (on CPUs none did at multiples of 8; on GPUs one that splits sums unevenly between tiles might,
    by one unit of the grid at a rounding boundary); `block_size=1` excludes that too.
    """

    def __init__(self, particles: Ensemble, limit: float, bits: int, block_size: int) -> None:
        check_limit(limit, "feature_limit")
        if not 1 <= bits <= 20:
            raise ValueError(f"bits must lie between 1 and 20, got {bits}")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        if particles.precision != "float32":
            raise ValueError(
                "features that are rounded to a grid must not be computed in reduced precision: "
                f"use an ensemble with precision='float32', got {particles.precision!r}"
            )
        self.particles, self.limit, self.bits, self.block_size = particles, limit, bits, block_size
        template = particles.template
        self.exact = bool(getattr(template, "exact", False))
        # a map may split its batches into blocks itself
        self.padded = not (self.exact or getattr(template, "blocks_itself", False))
        self.scale = 2.0**bits / limit

    def blocks(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Rows in portions of bounded memory."""
        size = self.block_size
        if not self.padded:
            size = 4096 if self.particles.device.type == "cuda" else 1024
        return zip(*[tensor.split(size) for tensor in tensors], strict=True)

    def __call__(self, x: Tensor) -> Tensor:
        """Features of one block `[N, B, M]` on the grid."""
        return self.measured(x).features

    @torch.no_grad()
    def measured(self, x: Tensor) -> Block:
        """The same with the features before rounding, and which were clipped."""
        count = len(x)
        x = x.float() if x.dtype == torch.uint8 and self.padded else x
        missing = max(1, self.block_size if self.padded else 0) - count
        if missing > 0:
            filler = x[:1] if count else x.new_zeros(1, *x.shape[1:])
            x = torch.cat([x, filler.expand(missing, *x.shape[1:])])
        features = self._forward(x)
        if not isinstance(features, Tensor) or features.dim() != 3 or features.shape[1] != len(x):
            got = tuple(features.shape[1:]) if isinstance(features, Tensor) else type(features)
            raise ValueError(
                f"a feature map must give [B, M] for B={len(x)}, got {got}: add nn.Flatten()"
            )
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

    def _forward(self, x: Tensor) -> Any:
        try:
            with self.particles.evaluating():
                return self.particles(x)
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

    def fingerprint(self, state: dict[str, Tensor] | None = None) -> str:
        """A hash of the maps (or of maps with this state) and the grid: filters with equal ones
        can be merged. It is followed by what else affects the bits of maps that are not `exact`."""
        state = self.particles.state_dict() if state is None else state
        template = self.particles.template
        digest = hashlib.sha256(repr((template, self.limit, self.bits)).encode())
        for name in sorted(state):
            tensor = state[name].detach().cpu().contiguous()
            digest.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        own = getattr(template, "fingerprint", None)
        parts = [digest.hexdigest()]
        if callable(own):
            parts.append(own(self.particles.device))
        return "-".join([*parts, f"blocks of {self.block_size}"] if self.padded else parts)


class GridWarnings:
    """The warnings of a filter, each given once."""

    def __init__(self) -> None:
        self.told: set[str] = set()  # names of limits
        self.advice: dict[str, str] = {}  # by limit, from an estimator with settings of its own

    def compare(self, what: str, raw: Tensor, rounded: Tensor, limit: float, setting: str) -> None:
        """Compare values with the rounded ones on a grid that ends at +-limit."""
        if setting in self.told or not raw.any():
            return
        raw = raw.double()
        clipped = (raw.abs() > limit).double().mean().item()
        lost = (raw.clamp(-limit, limit) - rounded).square().sum() / raw.square().sum()
        if clipped > _CLIPPED[setting]:
            how = f"{100 * clipped:.0f} % of the {what} lie beyond +-{limit:g} and are clipped"
        elif lost > _ROUNDED[setting]:
            how = f"the {what} are so small that rounding takes {100 * lost:.1f} % of their squares"
        else:
            return
        self.told.add(setting)
        # a power of two, at least twice the largest value seen
        better = 2.0 ** math.ceil(math.log2(2.0 * raw.abs().max().item()))
        advice = self.advice.get(setting, f"scale them, or set {setting}={better!r}")
        warnings.warn(f"{how}: {advice}", stacklevel=6)


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


def as_ensemble(features: Ensemble | nn.Module) -> Ensemble:
    """An ensemble unchanged, or a single module as an ensemble of one."""
    if isinstance(features, Ensemble):
        return features
    if not isinstance(features, nn.Module):
        raise TypeError(f"features must be an Ensemble or a module, got {type(features).__name__}")
    parameter = next(features.parameters(), None)
    device = None if parameter is None else parameter.device
    body = _Body(features) if parameter is None else features
    return Ensemble.from_modules([body], device=device)
