"""The points of a map from its records: averages, variances, and gains with intervals."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orderless import metrics
from orderless_lab.storage.typed import Json, Misfit, Setting, decode, optional

from ..experiments.record import Reading, ReadingRecord, TrainingRecord
from .summary import ReportError

COMBINES = ("accuracy", "logits", "probs")  # the combinations of `evaluation.score_task`
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Variant(Reading):
    """A reading at one point of the map."""

    rate: float | None
    init: str | None


@dataclass(frozen=True)
class Scores:
    """Statistics over tasks, orders and seeds."""

    average: float
    order_variance: float
    seed_variance: float


@dataclass(frozen=True, kw_only=True)
class Point(Variant):
    """One method at one point of the map.

    Filters have a `gain` over unweighted particles of the same run. Methods trained by SGD have an
    `order_gain`: their order variance minus that of gradient descent at the same point; two orders
    are too few for it. Both map a combination to [value, low, high] with a paired 95 % interval.
    """

    moved: float  # mean of |x_T - x_0| / |x_0| over its particles
    ess: float  # of the weights used for predictions
    power: float
    died: int
    accuracy: Scores
    logits: Scores
    probs: Scores
    gain: dict[str, list[float]] | None = optional()
    order_gain: dict[str, list[float]] | None = optional()

    def scores(self, combine: str) -> Scores:
        return getattr(self, combine)

    def gains(self, combine: str) -> list[float]:
        return (self.gain or {})[combine]


@dataclass(frozen=True, kw_only=True)
class RegimeSummary:
    """All points of a map, as written to JSON."""

    kind: str = "regime"
    benchmark: str = "splitmnist"
    scenario: str = "domain"
    orders: int
    seeds: int
    trainings: int
    settings: dict[str, Setting]
    points: list[Point]
    command: str
    device: str
    versions: dict[str, str]
    duration: float


Places = dict[tuple[int, int], tuple[TrainingRecord, ReadingRecord]]  # by (seed, order)
Grids = dict[Variant, dict[str, Array]]  # combination -> S[seed, order, task]


def summarize_regime(records: list[dict[str, Json]]) -> RegimeSummary:
    """All points of a map from its finished trainings."""
    if not records:
        raise ReportError("The map holds no finished training; run `orderless run regime` first.")
    try:
        trainings = [decode(TrainingRecord, record) for record in records]
    except Misfit as misfit:
        raise ReportError(f"A training of the map is not valid: {misfit}.") from None
    found: dict[Variant, Places] = {}
    for t in trainings:
        for r in t.readings:
            weighed = r.method, r.n, r.loss_scale, r.min_ess
            variant = Variant(*weighed, rate=t.rate, init=t.init)
            found.setdefault(variant, {})[t.seed, t.order_index] = t, r
    seeds = sorted({training.seed for training in trainings})
    orders = sorted({training.order_index for training in trainings})

    def grid(places: Places, combine: str) -> Array:
        return np.array([[places[s, o][1].scores[combine] for o in orders] for s in seeds])

    try:
        grids = {v: {c: grid(places, c) for c in COMBINES} for v, places in found.items()}
    except KeyError:
        raise ReportError(
            "The map is not complete: some orders or seeds are missing; run the same command again."
        ) from None
    settings = trainings[0].settings.items()
    return RegimeSummary(
        orders=len(orders),
        seeds=len(seeds),
        trainings=len(trainings),
        settings={k: v for k, v in settings if all(t.settings.get(k) == v for t in trainings)},
        points=[_point(variant, places, grids) for variant, places in found.items()],
        command=" && ".join(dict.fromkeys(t.command for t in trainings if t.command)),
        device=", ".join(dict.fromkeys(training.device for training in trainings)),
        versions=trainings[0].versions,
        duration=float(sum(training.duration for training in trainings)),
    )


def _point(variant: Variant, places: Places, grids: Grids) -> Point:
    ours = grids[variant]

    def over(metric: Literal["mean", "order_variance"], **changes: Any) -> dict[str, list[float]]:
        other = grids[replace(variant, min_ess=None, **changes)]
        return {c: list(metrics.paired_difference(ours[c], other[c], metric)) for c in COMBINES}

    trainings, readings = zip(*places.values(), strict=True)
    measures = metrics.average, metrics.order_variance, metrics.seed_variance
    found: dict[str, Any] = dict(vars(variant))
    found |= {c: Scores(*(of(grid) for of in measures)) for c, grid in ours.items()}
    for name in ("moved", "ess", "power"):
        found[name] = float(np.mean([getattr(reading, name) for reading in readings]))
    if variant.method == "wpf":
        found["gain"] = over("mean", method="averaging", loss_scale=0.0)
    if variant.method in ("wpf", "averaging") and ours["accuracy"].shape[1] != 2:
        found["order_gain"] = over("order_variance", method="gd", n=1, loss_scale=1.0)
    return Point(**found, died=sum(training.died_at is not None for training in trainings))


class Weighing(NamedTuple):
    """A variant of the filter's weights: plain, or with a loss scale or a least ESS."""

    words: str = "plain"
    loss_scale: float = 1.0
    min_ess: float | None = None


PLAIN = Weighing()


def chosen(
    points: list[Point],
    method: str,
    *,
    init: str | None = None,
    n: int | None = None,
    weighing: Weighing = PLAIN,
) -> list[Point]:
    """The points of a method, by learning rate."""
    scale = 0.0 if method == "averaging" else weighing.loss_scale
    found = [
        p
        for p in points
        if (p.method, p.loss_scale, p.min_ess) == (method, scale, weighing.min_ess)
        and init in (None, p.init)
        and n in (None, p.n)
    ]
    return sorted(found, key=lambda p: (p.init or "", p.n, p.rate or 0.0))


def sizes(points: list[Point]) -> list[int]:
    """The numbers of particles in the map, ascending."""
    return sorted({p.n for p in points if p.method == "wpf"})


def inits(points: list[Point]) -> list[str]:
    return sorted({p.init or "" for p in points if p.method == "wpf"})


def weighings(points: list[Point]) -> list[Weighing]:
    """The variants of the filter's weights in the map, the paper's first."""
    weighed = [p for p in points if p.method == "wpf"]
    scales = sorted({p.loss_scale for p in weighed} - {1.0})
    shares = sorted({p.min_ess for p in weighed if p.min_ess is not None})
    return [
        PLAIN,
        *(Weighing(f"loss_scale={c:g}", loss_scale=c) for c in scales),
        *(Weighing(f"min_ess={share:g} N", min_ess=share) for share in shares),
    ]
