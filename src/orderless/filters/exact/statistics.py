"""Sums over the data that know everything a linear head needs, without any rounding.

Features lie on a grid: whole multiples of one power of two, at most 2^bits of them. A product of
two needs 2 * bits bits, a sum of 2^(52 - 2 * bits) products 52: float64 holds all of it exactly. So
the sums are those of integers. They do not depend on the order of the samples, on how they were cut
into batches or spread over machines, and what was added can be taken away without a trace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Column = tuple[int, int]  # (task, label); task is -1 where heads are not told apart by task


@dataclass
class HeadStatistics:
    """The sums. N particles, M features and a constant 1 as feature M + 1, K head columns.

    `gram` `[N, M+1, M+1]` = Phi^T Phi, `moments` `[N, M+1, K]` = Phi^T Y, `squares` `[K]` = sums
    of y^2, all float64; `columns` in ascending order; `clipped` counts values cut off by the grid.
    """

    gram: Tensor
    moments: Tensor
    squares: Tensor
    columns: list[Column] = field(default_factory=list)
    samples: int = 0
    clipped: int = 0

    @classmethod
    def empty(cls, n: int, features: int, device: torch.device) -> HeadStatistics:
        check_memory(n, features, device)
        size = features + 1
        options: Any = {"dtype": torch.float64, "device": device}
        gram, moments = torch.zeros(n, size, size, **options), torch.zeros(n, size, 0, **options)
        return cls(gram, moments, torch.zeros(0, **options))

    @property
    def features(self) -> int:
        return self.gram.shape[1] - 1

    @property
    def counts(self) -> Tensor:
        """The sum of targets per column `[K]`: for classes, how many samples each has."""
        return self.moments[0, -1]

    def with_columns(self, wanted: set[Column]) -> HeadStatistics:
        """The same sums with a column for each of `wanted`: a new class starts with zeros.

        All but the large `gram` is a copy, which leaves these as they are when it grows.
        """
        columns = sorted(set(self.columns) | wanted)
        moments = self.moments.new_zeros(*self.moments.shape[:2], len(columns))
        squares = self.squares.new_zeros(len(columns))
        old = [columns.index(column) for column in self.columns]
        moments[..., old], squares[old] = self.moments, self.squares
        return HeadStatistics(self.gram, moments, squares, columns, self.samples, self.clipped)

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add samples: features `[N, B, M]`, targets `[B, K]`, on the grid."""
        targets = targets.double()
        for particle, rows in enumerate(_with_constant(features)):
            self.gram[particle].addmm_(rows.T, rows)
            self.moments[particle].addmm_(rows.T, targets)
        self.squares.add_(targets.square().sum(0))
        self.samples += len(targets)

    def begun(self) -> int:
        """How many samples an addition that broke off has left in `gram`, of some particle.

        The constant's square counts them: one kernel adds to it and to all the rest.
        """
        return int(self.gram[:, -1, -1].max()) - self.samples

    def take_back(self, features: Tensor) -> None:
        """Take such samples out of `gram` again where they are in it."""
        for gram, rows in zip(self.gram, _with_constant(features), strict=True):
            if gram[-1, -1] > self.samples:
                gram.addmm_(rows.T, rows, alpha=-1)

    def plus(self, other: HeadStatistics) -> HeadStatistics:
        """The statistics of both data sets together."""
        ours = self.with_columns(set(other.columns))
        theirs = other.with_columns(set(self.columns))
        return HeadStatistics(
            ours.gram + theirs.gram.to(ours.gram.device),
            ours.moments + theirs.moments.to(ours.gram.device),
            ours.squares + theirs.squares.to(ours.gram.device),
            ours.columns,
            ours.samples + theirs.samples,
            ours.clipped + theirs.clipped,
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "gram": self.gram.clone(),
            "moments": self.moments.clone(),
            "squares": self.squares.clone(),
            "columns": [list(column) for column in self.columns],
            "samples": self.samples,
            "clipped": self.clipped,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> HeadStatistics:
        gram, moments, squares = (
            state[name].to(device).clone() for name in ("gram", "moments", "squares")
        )
        columns = [(int(task), int(label)) for task, label in state["columns"]]
        return cls(gram, moments, squares, columns, int(state["samples"]), int(state["clipped"]))


def _with_constant(features: Tensor) -> Iterator[Tensor]:
    """One particle after another: `[B, M + 1]`, float64."""
    one = features.new_ones(features.shape[1], 1, dtype=torch.float64)
    return (torch.cat([rows.double(), one], dim=1) for rows in features)


def solved_together(
    n: int, features: int, device: torch.device, chunk_size: int | None = None
) -> int:
    """How many heads to solve as one batch: a large matrix fills a GPU by itself, and on the CPU
    LAPACK takes one after another anyway."""
    return 1 if device.type == "cpu" else max(1, min(n, chunk_size or n, 2**24 // features**2))


def check_memory(n: int, features: int, device: torch.device) -> None:
    """Refuse what would not fit: sums and factors `[N, M, M]`, and three `[M, M]` to solve one."""
    matrices = 2 * n + 3 * solved_together(n, features, device)
    needed = 8 * (features + 1) ** 2 * matrices
    available = available_memory(device)
    if available is not None and needed > available:
        fits = int((available / (8 * matrices)) ** 0.5)
        raise MemoryError(
            f"{n} particles with {features} features need {needed / 2**30:.1f} GiB of matrices but "
            f"{available / 2**30:.1f} GiB are free on {device}: use at most {fits} features, or "
            "fewer particles"
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that could still be allocated on the device, or None where nobody tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
