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
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from .exact.samples import sample_hashes

_BYTES = 16  # of a hash


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
        self._counts: Counter[bytes] = Counter()
        self._rows: dict[bytes, tuple[Tensor, Tensor]] = {}
        self._kind: tuple[Any, ...] | None = None  # shapes and types of x and y

    def __len__(self) -> int:
        """The number of kept samples; equal ones count as often as they came."""
        return self._counts.total()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(share={self.share:g}, {len(self)} samples)"

    def add(self, x: Tensor, y: Tensor) -> None:
        """Look at samples x `[B, ...]` with targets y `[B]` or `[B, K]`, and keep some."""
        self._take(self._chosen(x, y))

    def forget(self, x: Tensor, y: Tensor) -> None:
        """Remove samples, as if they had never been added. After an error nothing has changed."""
        gone = self._chosen(x, y)._counts
        missing = gone - self._counts
        if missing:
            raise ValueError(
                f"{missing.total()} of these samples would have been kept and are not here: they "
                "were never added. Nothing was forgotten"
            )
        self._counts = self._counts - gone
        self._rows = {name: self._rows[name] for name in self._counts}

    def samples(self) -> tuple[Tensor, Tensor]:
        """What is kept, (x `[S, ...]`, y `[S, ...]`), in the order of the hashes; on the CPU."""
        if not self._counts:
            raise ValueError("nothing is kept yet: add samples, or keep a larger share")
        names = [name for name in sorted(self._counts) for _ in range(self._counts[name])]
        x, y = zip(*(self._rows[name] for name in names), strict=True)
        return torch.stack(x), torch.stack(y)

    def __add__(self, other: KeptSample) -> Self:
        """A sample with what both have kept. Neither changes."""
        if not isinstance(other, KeptSample):
            return NotImplemented
        if (self.share, self.key) != (other.share, other.key):
            raise ValueError(
                f"share is {self.share:g} here and {other.share:g} there, or the keys differ: give "
                "both samples the same share and key"
            )
        result = copy.copy(self)
        result._counts = self._counts.copy()
        result._rows = dict(self._rows)
        result._take(other)
        return result

    def state_dict(self) -> dict[str, Any]:
        """What is kept; see `ol.save`."""
        state = {"kind": type(self).__name__, "share": self.share, "key": self.key}
        return {**state, "samples": self.samples() if len(self) else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what was kept, with its share and key. Raise before any change if it is no such
        state."""
        name = type(self).__name__
        if state.get("kind") != name:
            raise ValueError(f"this state is of a {state.get('kind')}, not of a {name}")
        loaded = KeptSample(state["share"], key=state["key"])
        if state["samples"] is not None:
            loaded.add(*state["samples"])
            if len(loaded) != len(state["samples"][1]):
                raise ValueError("this state holds samples that its share and key do not keep")
        vars(self).update(vars(loaded))

    def _chosen(self, x: Tensor, y: Tensor) -> KeptSample:
        """Those of some samples that are kept."""
        if x.dim() == 0 or y.dim() == 0 or len(x) != len(y):
            raise ValueError(
                "x and y must have as many rows as each other, got shapes "
                f"{tuple(x.shape)} and {tuple(y.shape)}"
            )
        chosen = KeptSample(self.share, key=self.key)
        chosen._kind = (tuple(x.shape[1:]), x.dtype, tuple(y.shape[1:]), y.dtype)
        self._check_kind(chosen)
        names = sample_hashes(f"kept {self.key}", x, y, size=_BYTES)
        for row, name in enumerate(names):
            if int.from_bytes(name) < self.share * 256**_BYTES:
                chosen._counts[name] += 1
                chosen._rows[name] = _alone(x[row]), _alone(y[row])
        return chosen

    def _take(self, others: KeptSample) -> None:
        self._check_kind(others)
        self._kind = others._kind or self._kind
        self._counts.update(others._counts)
        self._rows.update(others._rows)

    def _check_kind(self, others: KeptSample) -> None:
        """Raise `ValueError` for samples of another shape or type than those that are here."""
        if None not in (self._kind, others._kind) and self._kind != others._kind:
            raise ValueError(
                f"samples were {_kind_name(self._kind)} and are now {_kind_name(others._kind)}: "
                "convert them first"
            )


def _alone(values: Tensor) -> Tensor:
    """A copy on the CPU; minus zero is zero, as for the hash."""
    values = values.detach().cpu().clone()
    return values + 0.0 if values.is_floating_point() else values


def _kind_name(kind: Any) -> str:
    shape, dtype, target_shape, target_dtype = kind
    return f"{dtype} {list(shape)} with targets {target_dtype} {list(target_shape)}"
