"""A ledger: which samples are in the sums, as a keyed hash of 12 bytes and a count of 4 each.

The sums alone cannot tell whether a sample was ever added: most single samples that never were
could be taken away without any sum becoming impossible. The ledger can. It holds no data, but who
has it, the key and a sample can tell whether that sample was in: drop it before a head is
published. The key is the fingerprint of the head's maps, so that ledgers of equal heads add up.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

_SIXTEENTHS = 16.0
_HASH = 12  # bytes
_MOST = 2**31 - 1  # of a count, in sixteenths


@dataclass(frozen=True)
class Ledger:
    """How often each sample is in, in sixteenths, by the hash of its input, target and task."""

    counts: Counter[bytes]

    @classmethod
    def of(cls, key: str, x: Tensor, y: Tensor, task: int | None, weights: Tensor) -> Ledger:
        """The samples x `[B, ...]` with targets `[B]` or `[B, K]` and weights `[B]`."""
        hashes = sample_hashes(f"{key} {task}", x, y, size=_HASH)
        counts: Counter[bytes] = Counter()
        for name, weight in zip(hashes, (weights * _SIXTEENTHS).tolist(), strict=True):
            counts[name] += int(weight)
        return cls(counts)

    def plus(self, other: Ledger, sign: int = 1) -> Ledger:
        """Add or remove the samples of the other; refuse to remove what is not in."""
        counts = self.counts.copy()
        for name, count in other.counts.items():
            left = counts[name] + sign * count
            if left < 0:
                raise ValueError(
                    "these samples were never all in it: the ledger has no entry for "
                    f"{_missing(self.counts, other.counts)} of {len(other.counts)} with this "
                    "input, label, task and weight. Nothing was forgotten"
                )
            if left > _MOST:
                raise ValueError(f"a ledger counts a sample at most {_MOST / _SIXTEENTHS:g} times")
            if left:
                counts[name] = left
            else:
                del counts[name]
        return Ledger(counts)

    def state_dict(self) -> Tensor:
        """`[S, 4]`, int32, in the order of the hashes: three words of hash and a count."""
        entries = b"".join(
            name + count.to_bytes(4, "little") for name, count in sorted(self.counts.items())
        )
        return torch.frombuffer(bytearray(entries), dtype=torch.int32).view(-1, 4)

    @classmethod
    def from_state(cls, entries: Tensor) -> Ledger:
        """The inverse of `state_dict`."""
        data = entries.cpu().contiguous().numpy().tobytes()
        rows = (data[start : start + 16] for start in range(0, len(data), 16))
        pairs = {row[:_HASH]: int.from_bytes(row[_HASH:], "little") for row in rows}
        return cls(Counter(pairs))


def _missing(ours: Counter[bytes], theirs: Counter[bytes]) -> int:
    return sum(ours[name] < count for name, count in theirs.items())


def sample_hashes(key: str, x: Tensor, y: Tensor, *, size: int) -> list[bytes]:
    """A keyed hash of every sample (x, y), of `size` bytes; the same for equal numbers of any
    type."""
    secret = hashlib.blake2b(key.encode()).digest()
    rows = torch.cat([_numbers(x), _numbers(y)], dim=1).numpy()
    return [hashlib.blake2b(row.data, key=secret, digest_size=size).digest() for row in rows]


def _numbers(values: Tensor) -> Tensor:
    """Samples as float64 rows `[B, D]`; minus zero is zero."""
    return values.detach().cpu().reshape(len(values), -1).double() + 0.0
