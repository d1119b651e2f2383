"""Samples that are kept besides the sums, to evaluate heads: see `leave_one_out.py`.

Whether a sample is kept depends on a hash of its inputs alone. So the kept samples are a function
of the multiset of samples, as the sums are: they can be merged, and removed with the data. Each
takes 2 N M bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

_HASHED_AT_ONCE = 1 << 22  # values


@dataclass(frozen=True)
class KeptSamples:
    """S samples in ascending order of (key, column), each pair once."""

    keys: Tensor  # [S]
    columns: Tensor  # [S], see `column_numbers`
    weights: Tensor  # [S], float64
    features: Tensor  # [N, S, M], float16, in units of the grid's limit

    @classmethod
    def empty(cls, n: int, features: int, device: torch.device) -> KeptSamples:
        whole = torch.zeros(0, dtype=torch.int64, device=device)
        nothing = torch.zeros(n, 0, features, dtype=torch.float16, device=device)
        return cls(whole, whole, whole.double(), nothing)

    def plus(self, other: KeptSamples, sign: int = 1) -> KeptSamples:
        """Add or remove the samples of the other; weights of equal samples add up."""
        if not len(other.keys):
            return self
        other = KeptSamples(*[getattr(other, f.name).to(self.keys.device) for f in fields(self)])
        pairs = [torch.stack([each.keys, each.columns], 1) for each in (self, other)]
        found, place = torch.cat(pairs).unique(dim=0, return_inverse=True)
        weights = torch.cat([self.weights, sign * other.weights])
        weights = weights.new_zeros(len(found)).index_add_(0, place, weights)
        # the index of one of the equal samples
        source = torch.empty_like(found[:, 0])
        source[place] = torch.arange(len(place), device=place.device)
        left = weights != 0
        features = torch.cat([self.features, other.features], 1)
        return KeptSamples(found[left, 0], found[left, 1], weights[left], features[:, source[left]])

    def state_dict(self) -> dict[str, Tensor]:
        return {f"kept_{field.name}": getattr(self, field.name).clone() for field in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], device: torch.device) -> KeptSamples:
        return cls(*[state[f"kept_{field.name}"].to(device) for field in fields(cls)])


def keys_of(x: Tensor) -> Tensor:
    """A hash of every sample's values: `[B]`, int64, the same for equal numbers of any type."""
    flat = x.reshape(len(x), -1)
    factors = _factors(flat.shape[1], x.device)
    keys = []
    for part in flat.split(max(1, _HASHED_AT_ONCE // max(1, flat.shape[1]))):
        bits = (part.double() + 0.0).view(torch.int64)  # + 0: minus zero is zero
        # multilinear hashing; the lower halves of small integers are all zeros
        keys.append(((bits ^ _upper(bits, 32)) * factors).sum(1))
    return _mixed(torch.cat(keys))


@lru_cache(maxsize=8)
def _factors(count: int, device: torch.device) -> Tensor:
    """Pseudo-random odd numbers."""
    return _mixed(torch.arange(1, count + 1, device=device)) | 1


def _mixed(keys: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of the key; products wrap at 2^64."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        keys = (keys ^ _upper(keys, shift)) * factor
    return keys ^ _upper(keys, 31)


def _upper(bits: Tensor, shift: int) -> Tensor:
    return (bits >> shift) & ((1 << (64 - shift)) - 1)
