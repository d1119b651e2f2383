"""A sample of a stream that does not depend on the order of the stream.

A sample (x, y) is kept if a keyed hash of its numbers, read as a fraction, lies below the share:

    kept(D) = { (x, y) in D : hash(x, y) / 2^128 < share }

Each sample is judged by itself, so what is kept is a function of the data alone: the same for every
order, any batching, any division among machines, and after samples were removed again. A network
that is trained on the kept samples, in the order of their hashes, has the same bits for every
stream of the same data. It is the order-free answer where features must be learned, no tasks are
known, and some of the data may be stored. Experience replay (a reservoir) keeps what came by luck.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, Self

import torch
from torch import Tensor

from .exact.sums import sample_hashes

Named = tuple[bytes, tuple[Tensor, Tensor]]  # one sample: its name, x and y


class KeptSample:
    """The samples of a stream whose keyed hash lies below `share`.

    Equal samples have one hash: all of them are kept, or none, and each counts. `a + b` has the
    samples of both.

    Args:
        share: the expected share of the samples that is kept, above 0 and at most 1.
        key: another key keeps other samples. Who knows it can tell which samples will be kept.

    >>> x, y = torch.arange(2000.0).view(1000, 2), torch.arange(1000) % 2
    >>> kept = ol.KeptSample(share=1 / 8)
    >>> kept.add(x, y)
    >>> backwards = ol.KeptSample(share=1 / 8)
    >>> for i in reversed(range(1000)):
    ...     backwards.add(x[i : i + 1], y[i : i + 1])
    >>> torch.equal(kept.samples()[0], backwards.samples()[0])
    True
    >>> 100 < len(kept) < 150
    True
    """

    def __init__(self, share: float = 1 / 16, *, key: str = "") -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must lie above 0 and be at most 1, got {share}")
        self.share = share
        self.key = key
        self._kept: list[Named] = []

    def __len__(self) -> int:
        """The number of kept samples; equal ones count as often as they came."""
        return len(self._kept)

    def __repr__(self) -> str:
        return f"KeptSample(share={self.share:g}, {len(self)} samples)"

    def add(self, x: Tensor, y: Tensor) -> None:
        """Look at samples x `[B, ...]` with targets y `[B]` or `[B, K]`, and keep some."""
        chosen = list(self._chosen(x, y))
        _check_one_kind(self._kept[:1] + chosen)
        self._kept += chosen

    def forget(self, x: Tensor, y: Tensor) -> None:
        """Remove samples, as if they had never been added. After an error nothing has changed."""
        gone = Counter(name for name, _ in self._chosen(x, y))
        left = []
        for name, row in self._kept:
            if gone[name]:
                gone[name] -= 1
            else:
                left.append((name, row))
        if gone.total():
            raise ValueError(
                f"{gone.total()} of these samples would have been kept and are not here: they "
                "were never added. Nothing was forgotten"
            )
        self._kept = left

    def samples(self) -> tuple[Tensor, Tensor]:
        """What is kept, (x `[S, ...]`, y `[S, ...]`), in the order of the hashes; on the CPU."""
        if not self._kept:
            raise ValueError("nothing is kept yet: add samples, or keep a larger share")
        rows = [row for _, row in sorted(self._kept, key=itemgetter(0))]
        return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    def __add__(self, other: KeptSample) -> Self:
        """A sample with what both have kept. Neither changes."""
        if (self.share, self.key) != (other.share, other.key):
            raise ValueError(
                f"{self} and {other} cannot be added: give both the same share and key"
            )
        _check_one_kind(self._kept[:1] + other._kept[:1])
        result = copy.copy(self)
        result._kept = self._kept + other._kept
        return result

    def state_dict(self) -> dict[str, Any]:
        """What is kept; see `ol.save`."""
        samples = self.samples() if len(self) else None
        return {"kind": "KeptSample", "share": self.share, "key": self.key, "samples": samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what was kept, with its share and key. Raise before any change if it is no such
        state."""
        if state.get("kind") != "KeptSample":
            raise ValueError(f"this state is of a {state.get('kind')}, not of a KeptSample")
        loaded = KeptSample(state["share"], key=state["key"])
        if state["samples"] is not None:
            loaded.add(*state["samples"])
        vars(self).update(vars(loaded))

    def _chosen(self, x: Tensor, y: Tensor) -> Iterator[Named]:
        """The samples that are kept, each with a name: its hash, and its shapes and types, because
        equal numbers have one hash."""
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
            raise TypeError(
                f"x and y must be tensors, got {type(x).__name__} and {type(y).__name__}: use "
                "torch.as_tensor"
            )
        kind = f"{x.dtype} {list(x.shape[1:])}, {y.dtype} {list(y.shape[1:])}".encode()
        for row, name in enumerate(sample_hashes(f"kept {self.key}", x, y)):
            if int.from_bytes(name) < self.share * 2**128:
                yield name + kind, (_alone(x[row]), _alone(y[row]))


def _check_one_kind(samples: list[Named]) -> None:
    """Raise if samples could not be stacked."""
    kinds = sorted({name[16:].decode() for name, _ in samples})
    if len(kinds) > 1:
        raise ValueError(
            f"samples must have one shape and type, got {' and '.join(kinds)}: convert them "
            "before they are added"
        )


def _alone(values: Tensor) -> Tensor:
    """A copy on the CPU; minus zero is zero, as for the hash."""
    values = values.detach().cpu().clone()
    return values + 0.0 if values.is_floating_point() else values
