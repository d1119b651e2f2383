"""The charts that the PNG figures and the HTML page share.

Artists to which the page adds attributes have a `gid`: "dots-k" and "mark-k" for the k-th method in
a scatter plot, "line-k" and "band-k" over time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orderless.text import printable

from ..experiments.record import CellRecord
from ..methods import describe
from .summary import MethodSummary, ReportError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# For methods without a style of their own: grey is not among Okabe and Ito's colours.
OTHER_STYLES = [("#555555", marker) for marker in "dp8Ho^vs"]
DASHES: list[tuple[float, ...]] = [(), (7, 4), (2, 3), (9, 3, 2, 3), (14, 5)]
GRID = "#E5E5E5"
POINTS = 60  # number of steps at which a trace is drawn

Array = NDArray[np.float64]
Variance = Literal["total", "order"]


class Style(NamedTuple):
    """How a method is drawn. Related methods share colour and shape and differ in `dashes`."""

    label: str
    colour: str
    marker: str
    filled: bool
    small: bool
    dashes: tuple[float, ...]


def method_styles(names: Iterable[str], label: Callable[[str], str] = str) -> dict[str, Style]:
    """A method, its + WPF form and its tuned form (drawn smaller) share colour and shape."""
    styles: dict[str, Style] = {}
    methods, free = {name: describe(name) for name in names}, itertools.cycle(OTHER_STYLES)
    over_particles = {method.base for method in methods.values()}
    for name, method in methods.items():
        own = method.style
        colour, marker = (own.colour, own.marker) if own else next(free)
        kin = sum(style.colour == colour for style in styles.values())
        filled, dashes = name not in over_particles, DASHES[kin % len(DASHES)]
        styles[name] = Style(label(name), colour, marker, filled, method.tuned, dashes)
    return styles


def new_figure(width: float, height: float, *, layout: str | None = "constrained") -> Figure:
    """A figure with its own canvas: needs no display and does not change pyplot's state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReportError(
            "Figures need matplotlib; install it with `pip install 'orderless[report]'`."
        ) from error
    figure = Figure(figsize=(width, height), layout=layout)  # type: ignore[arg-type]
    FigureCanvasAgg(figure)
    return figure


def plain(text: str) -> str:
    """A name for matplotlib: control characters and dollars, which begin a formula, escaped."""
    return printable(text).replace("$", r"\$")


def tidy(axes: Axes) -> None:
    """Draw a grid in the background, and no frame above and to the right."""
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend_beside(axes: Axes) -> None:
    axes.legend(
        loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0, frameon=False, fontsize=8
    )


class Spot(NamedTuple):
    """A method, or one of its orders with its contribution to the variances."""

    name: str
    average: float
    total: float  # variance over orders and seeds
    order: float  # over orders alone
    dots: tuple[Spot, ...] = ()


def scatter_spots(methods: dict[str, MethodSummary], *, normalized: bool = True) -> list[Spot]:
    """A spot per method with both variances; if they are normalized, with a dot per order."""
    spots = []
    for name, entry in methods.items():
        total = entry.normalized_variance if normalized else entry.variance
        order = entry.normalized_order_variance if normalized else entry.order_variance
        if total is None or order is None:
            continue
        shares = entry.order_contributions, entry.order_contributions_within_seed
        columns = map(str, entry.order_indices), entry.order_averages, *(s or [] for s in shares)
        rows = zip(*columns, strict=False) if normalized else ()
        dots = tuple(Spot(i, a, t, o) for i, a, t, o in rows if t is not None and o is not None)
        spots.append(Spot(name, entry.average, total, order, dots))
    return spots


def scatter(
    axes: Axes,
    spots: Sequence[Spot],
    styles: dict[str, Style],
    variance: Variance,
    factor: float = 100.0,
    size: float = 1.0,
) -> None:
    """Draw a marker per method and a faint dot per order; the marker is at the mean of its dots.

    Scores are multiplied by `factor`, areas of marks by `size`.
    """
    for place, spot in enumerate(spots):
        style = styles[spot.name]
        axes.scatter(
            [factor * dot.average for dot in spot.dots],
            [getattr(dot, variance) for dot in spot.dots],
            s=7 * size,
            color=style.colour,
            alpha=0.35,
            linewidths=0,
            gid=f"dots-{place}",
        )
        axes.scatter(
            factor * spot.average,
            getattr(spot, variance),
            s=size * (210 if style.marker == "*" else 85) / (2 if style.small else 1),
            marker=style.marker,
            facecolors=style.colour if style.filled else "white",
            edgecolors="white" if style.filled else style.colour,
            linewidths=0.6 if style.filled else 1.4,
            label=plain(style.label),
            zorder=3,
            gid=f"mark-{place}",
        )
    tidy(axes)


def variance_scale(axes: Axes, values: Iterable[float], tiny: float = 1e-12) -> None:
    """A logarithmic scale with a linear part at the bottom, for variances of exactly 0."""
    positive = [value for value in values if value > tiny]
    if positive:
        threshold = 10.0 ** math.floor(math.log10(min(positive)))
        axes.set_yscale("symlog", linthresh=threshold, linscale=0.4)
        axes.set_ylim(bottom=-0.15 * threshold)


class Band(NamedTuple):
    """Mean, lowest and highest value over cells; NaN where no cell has a value."""

    mean: Array
    low: Array
    high: Array


class Series(NamedTuple):
    """One quantity over training, by method, at common steps or places in the order."""

    title: str
    steps: Array
    lines: dict[str, Band]
    scale: str = "linear"  # or "log" (from 1), or "share" (0 to 1)
    unit: Literal["step", "place"] = "step"


def series(
    cells: Iterable[CellRecord],
    record: Literal["trace", "curves"],
    key: str,
    title: str,
    scale: str = "linear",
) -> Series | None:
    """The mean, lowest and highest value over cells per method; None without any."""
    found: dict[str, list[Array]] = {}
    for cell in cells:
        content = getattr(cell, record) or {}
        pairs = zip(content.get("step", []), content.get(key, []), strict=False)
        if points := sorted((s, v) for s, v in pairs if s is not None and v is not None):
            found.setdefault(cell.method, []).append(np.array(points, dtype=np.float64).T)
    if not found:
        return None
    ends = [steps[i] for traces in found.values() for steps, _ in traces for i in (0, -1)]
    grid, lines = np.linspace(min(ends), max(ends), POINTS), {}
    for name, traces in found.items():
        rows = np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in traces])
        band, reached = np.full((3, POINTS), np.nan), np.isfinite(rows).any(axis=0)
        known = rows[:, reached]
        band[:, reached] = np.nanmean(known, 0), np.nanmin(known, 0), np.nanmax(known, 0)
        lines[name] = Band(*band)
    return Series(title, grid, lines, scale)


def draw_series(
    axes: Axes, data: Series, styles: dict[str, Style], *, thin: Sequence[str] = ()
) -> None:
    """Draw a line per method with a band from the lowest to the highest; `thin` ones without."""
    for place, (name, band) in enumerate(data.lines.items()):
        style = styles[name]
        axes.plot(
            data.steps,
            band.mean,
            color=style.colour,
            linewidth=0.8 if name in thin else 1.8,
            dashes=style.dashes or (None, None),
            label=plain(style.label),
            gid=f"line-{place}",
        )
        if name not in thin:
            fill = axes.fill_between(
                data.steps, band.low, band.high, color=style.colour, alpha=0.13, lw=0
            )
            fill.set_gid(f"band-{place}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel(data.title)
