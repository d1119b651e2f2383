"""Features on a grid: computed so that no batch, order or neighbour can change a bit of them."""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...features.exact import check_limit
from ...particles import Ensemble


class Block(NamedTuple):
    """A block's features `[N, B, M]` on the grid, as the maps gave them, and which were clipped."""

    features: Tensor
    raw: Tensor
    clipped: Tensor


class GridFeatures:
    """An ensemble's outputs `[N, B, M]` rounded to multiples of `limit / 2^bits` and clipped.

    A map that is `exact` (all those in `orderless.features`) gives a sample the same bits anywhere.
    For any other, blocks are filled up to `block_size` rows, so that a sample always meets the same
    kernels; then only a kernel that treats rows differently by their place could tell (on CPUs none
    did at multiples of 8; on GPUs one that splits sums unevenly between tiles might, by one unit of
    the grid where a value lies within rounding of a boundary). `block_size=1` excludes that too.
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
        # what cuts its batches into blocks of its own needs no others
        self.padded = not (self.exact or getattr(template, "blocks_itself", False))
        self.scale = 2.0**bits / limit

    def blocks(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Rows in portions of bounded memory."""
        size = self.block_size
        if not self.padded:
            size = 4096 if self.particles.device.type == "cuda" else 1024
        return zip(*[tensor.split(size) for tensor in tensors], strict=True)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Features of one block `[N, B, M]` on the grid."""
        return self.measured(x).features

    @torch.no_grad()
    def measured(self, x: Tensor) -> Block:
        """The same with what rounding and clipping took away."""
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
        training = self.particles.training
        self.particles.eval()
        try:
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
        finally:
            self.particles.train(training)

    def fingerprint(self, state: dict[str, Tensor] | None = None) -> str:
        """A hash of the maps (or of maps with this state) and the grid: equal means mergeable.

        What else decides about the bits of a map that is not `exact` stands behind it.
        """
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


class _Body(nn.Module):
    """A module without parameters as a particle, for which an ensemble wants to see one."""

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
    """An ensemble as it is; a single module as an ensemble of one."""
    if isinstance(features, Ensemble):
        return features
    if not isinstance(features, nn.Module):
        raise TypeError(f"features must be an Ensemble or a module, got {type(features).__name__}")
    parameter = next(features.parameters(), None)
    device = None if parameter is None else parameter.device
    body = _Body(features) if parameter is None else features
    return Ensemble.from_modules([body], device=device)
