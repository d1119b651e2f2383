"""Samples that are counted one by one: those kept to choose the ridge by, and those in a ledger.

Whether a sample is kept depends on a hash of its inputs alone. So the kept samples are a function
of the multiset of samples, as the sums are: they can be merged, and removed with it.

The sums alone cannot tell whether a sample was ever added: most single samples that never were
could be taken away without any sum becoming impossible. A ledger can. It holds no data, but who has
it, its key and a sample can tell whether that sample was in: drop it before a head is published.
The key is the fingerprint of the head's maps, so that ledgers of equal heads add up.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """S distinct samples in ascending order of their keys, and the total weight of each.

    A kept sample has its features; a ledger keeps 16 bytes per sample, a key and a weight.
    """

    keys: Tensor  # [S, 1 or 2], int64: a hash, and the column of a kept sample
    weights: Tensor  # [S], float64
    features: Tensor  # [N, S, M], float32, in units of the grid's limit; [0, S, 0] in a ledger

    @classmethod
    def of(cls, parts: list[Samples]) -> Samples:
        """Any samples: equal ones become one, and those whose weights add up to 0 none."""
        all_keys, all_weights, all_features = zip(*parts, strict=True)
        keys = torch.cat(all_keys)
        weights = torch.cat(all_weights)
        features = torch.cat(all_features, 1)
        order = torch.arange(len(keys), device=keys.device)
        for key in reversed(keys.unbind(1)):
            order = order[key[order].sort(stable=True).indices]
        ascending = keys[order]
        first = torch.ones_like(order, dtype=torch.bool)
        first[1:] = (ascending[1:] != ascending[:-1]).any(1)
        totals = weights.new_zeros(int(first.sum()))
        totals.index_add_(0, first.cumsum(0) - 1, weights[order])
        left = order[first][totals != 0]
        return cls(keys[left], totals[totals != 0], features[:, left])

    def plus(self, other: Samples, sign: int = 1) -> Samples:
        """Add or remove the samples of the other."""
        return Samples.of([self, other._replace(weights=sign * other.weights)])


def sample_hashes(key: str, x: Tensor, y: Tensor) -> list[bytes]:
    """A keyed hash of every sample (x, y), 16 bytes; the same for equal numbers of any type."""
    secret = hashlib.blake2b(key.encode()).digest()
    rows = torch.cat([_numbers(x).cpu(), _numbers(y).cpu()], dim=1).numpy()
    return [hashlib.blake2b(row.data, key=secret, digest_size=16).digest() for row in rows]


def _numbers(values: Tensor) -> Tensor:
    """Samples as float64 rows `[B, D]`; minus zero is zero."""
    return values.detach().reshape(len(values), -1).double() + 0.0


def sample_keys(x: Tensor) -> Tensor:
    """A fast hash of every sample's values, computed where they are: `[B]`, int64, the same for
    equal numbers of any type."""
    bits = _numbers(x).view(torch.int64)
    # multilinear hashing; the lower halves of small integers are all zeros
    return _mixed(((bits ^ _upper(bits, 32)) * _factors(bits.shape[1], x.device)).sum(1))


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
