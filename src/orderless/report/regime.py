"""From the records of a map to its points: averages, variances, and gains with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from .cells import ReportError

Record = dict[str, Any]
Point = dict[str, Any]
Key = tuple[Any, ...]

COMBINES = ("accuracy", "logits", "probs")
FIELDS = ("method", "rate", "init", "n", "loss_scale", "min_ess")


def summarize_regime(records: list[Record]) -> dict[str, Any]:
    """All points of a map, ready for JSON.

    A point is one method at one place of the map. `moved` is the mean over its particles of
    |x_T - x_0| / |x_0|, `ess` the effective sample size of the weights it answers with. Filters
    have a `gain` over unweighted particles of the same run, and every method trained by SGD an
    `order_gain`, its order variance less that of gradient descent at the same place; both as
    [value, low, high] with a paired 95 % bootstrap interval over orders.
    """
    if not records:
        raise ReportError("The map holds no finished training; run `orderless run regime` first.")
    readings: dict[Key, dict[tuple[int, int], Record]] = {}
    for record in records:
        for reading in record["readings"]:
            full = {**reading, **{name: record[name] for name in ("rate", "init")}}
            key = tuple(full[name] for name in FIELDS)
            full["died"] = record["died_at"] is not None
            readings.setdefault(key, {})[record["seed"], record["order_index"]] = full
    seeds = sorted({record["seed"] for record in records})
    orders = sorted({record["order_index"] for record in records})
    grids = {
        key: {name: _grid(places, seeds, orders, name) for name in COMBINES}
        for key, places in readings.items()
    }
    points = [_point(key, list(places.values()), grids) for key, places in readings.items()]
    first = records[0]
    shared = {
        key: value
        for key, value in first["settings"].items()
        if all(record["settings"].get(key) == value for record in records)
    }
    return {
        "kind": "regime",
        "benchmark": "splitmnist",
        "scenario": "domain",
        "orders": len(orders),
        "seeds": len(seeds),
        "trainings": len(records),
        "settings": shared,
        "points": points,
        "command": " && ".join(dict.fromkeys(r["command"] for r in records if r["command"])),
        "device": ", ".join(dict.fromkeys(r["device"] for r in records)),
        "versions": first["versions"],
        "duration": float(sum(record["duration"] for record in records)),
    }


def _grid(
    places: dict[tuple[int, int], Record], seeds: list[int], orders: list[int], combine: str
) -> NDArray[np.float64]:
    try:
        rows = [[places[s, o]["scores"][combine] for o in orders] for s in seeds]
    except KeyError:
        raise ReportError(
            "The map is not complete: some orders or seeds are missing; run the same command again."
        ) from None
    return np.array(rows)


def _point(key: Key, readings: list[Record], grids: dict[Key, Any]) -> Point:
    names = dict(zip(FIELDS, key, strict=True))
    point: Point = {
        **names,
        "moved": float(np.mean([r["moved"] for r in readings])),
        "ess": float(np.mean([r["ess"] for r in readings])),
        "power": float(np.mean([r["power"] for r in readings])),
        "died": sum(r["died"] for r in readings),
    }
    for combine in COMBINES:
        scores = grids[key][combine]
        point[combine] = {
            "average": metrics.average(scores),
            "order_variance": metrics.order_variance(scores),
            "seed_variance": metrics.seed_variance(scores),
        }
    if names["method"] == "wpf":
        other = {**names, "method": "averaging", "loss_scale": 0.0, "min_ess": None}
        point["gain"] = _differences(grids, key, other, "mean")
    if names["method"] in ("wpf", "averaging"):
        other = {**names, "method": "gd", "n": 1, "loss_scale": 1.0, "min_ess": None}
        point["order_gain"] = _differences(grids, key, other, "order_variance")
    return point


def _differences(
    grids: dict[Key, Any], key: Key, other: dict[str, Any], metric: Any
) -> dict[str, list[float]]:
    against = grids[tuple(other[name] for name in FIELDS)]
    return {
        combine: list(metrics.paired_difference(grids[key][combine], against[combine], metric))
        for combine in COMBINES
    }


def chosen(
    points: list[Point],
    method: str,
    *,
    init: str | None = None,
    n: int | None = None,
    loss_scale: float | None = None,
    min_ess: float | None = None,
) -> list[Point]:
    """A method's points by rate: plain ones unless a loss scale or least ESS is named."""
    scale = loss_scale if loss_scale is not None else (0.0 if method == "averaging" else 1.0)
    found = [
        p
        for p in points
        if p["method"] == method
        and p["loss_scale"] == scale
        and p["min_ess"] == min_ess
        and init in (None, p["init"])
        and n in (None, p["n"])
    ]
    return sorted(found, key=lambda p: (p["init"] or "", p["n"], p["rate"] or 0.0))


def sizes(points: list[Point]) -> list[int]:
    """The N of the map, ascending."""
    return sorted({p["n"] for p in points if p["method"] == "wpf"})


def inits(points: list[Point]) -> list[str]:
    return sorted({p["init"] for p in points if p["method"] == "wpf"})


def variants(points: list[Point]) -> list[tuple[str, dict[str, Any]]]:
    """How the filter was weighed, as (words, arguments of `chosen`): the paper's way first."""
    scales = sorted({p["loss_scale"] for p in points if p["method"] == "wpf"} - {1.0})
    shares = sorted({p["min_ess"] for p in points if p["method"] == "wpf"} - {None})
    return [
        ("plain", {}),
        *[(f"loss_scale={c:g}", {"loss_scale": c}) for c in scales],
        *[(f"min_ess={share:g} N", {"min_ess": share}) for share in shares],
    ]
