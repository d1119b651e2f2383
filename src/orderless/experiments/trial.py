"""Trying ever larger parts of the work, until one takes long enough to tell what all of it takes.

What is tried is a small cell: fewer particles, fewer samples in a step. Work grows with both in
proportion, so the time of a part is scaled up by how much larger the whole is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..consolidation import EWC
from ..methods import find_method
from ..particles import Ensemble
from .course import Cell

# Seconds that a trial should take. Much shorter, and it measures what calls cost, not work.
PATIENCE = 0.6


@dataclass(frozen=True)
class Trial:
    """`seconds` for a cell and `bytes_held` by its parameters, scaled up from what was tried.

    What was timed `took` so many seconds; `share` of a step's work was tried.
    """

    seconds: float
    bytes_held: int
    took: float
    share: float


def long_enough(attempt: Callable[[float], Trial]) -> Trial:
    """From the least work on, `attempt(share)` of ever more, or all there is."""
    share, trial = 0.0, attempt(0.0)
    while share < 1 and trial.share < 1 and trial.took < PATIENCE / 4:
        share = min(1.0, trial.share * PATIENCE / max(trial.took, 1e-6))
        trial = attempt(share)
    return trial


def part(whole: int, share: float, least: int = 1) -> int:
    return min(whole, max(least, math.ceil(whole * share)))


def smaller(cell: Cell, share: float, **changes: Any) -> Cell:
    """The cell with a share of its particles (but many remain many), and with other changes."""
    s = cell.settings
    values: dict[str, Any] = s.flat()
    few = {
        name: part(values[name], share, 2)
        for name in ("particles", "rb_particles")
        if name in values
    }
    changes = {key: value for key, value in changes.items() if key in values}
    return replace(cell, settings=s.changed(min_ess=None, **few, **changes))


def side(cell: Cell, share: float) -> float:
    """The share of particles and the share of samples that make this share of the work."""
    return share if particles_of(cell) == 1 else math.sqrt(share)


def particles_of(cell: Cell) -> int:
    """N of the whole cell."""
    if cell.method == "rb":
        return cell.settings.flat()["rb_particles"]  # type: ignore[return-value]
    return cell.settings.particles if find_method(cell.method).particles else 1


def bytes_of(particles: Ensemble) -> int:
    return sum(p.numel() * p.element_size() for p in particles.parameters())


def fisher_growth(learner: Any, limit: int | None, whole: int, tried: int) -> float:
    """How much longer the end of a task takes with `whole` samples instead of `tried`.

    Only EWC looks at samples then, and at no more than `limit`.
    """
    if not isinstance(getattr(learner, "consolidation", None), EWC):
        return 1.0
    limit = limit or whole
    return min(limit, whole) / min(limit, tried)
