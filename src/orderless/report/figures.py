"""Figures 1 and 2 of the paper, from our own runs (matplotlib and scikit-learn, imported late)."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..methods import Style, describe
from .cells import ReportError
from .paper import method_label
from .snapshots import load_snapshots
from .tables import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours can be told apart with every kind of colour blindness; so can the shapes.
OTHER_STYLES = [("#555555", marker) for marker in "dp8Ho^vs"]


def new_figure(width: float, height: float) -> Figure:
    """A figure with its own canvas: needs no display and leaves the user's pyplot state alone."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReportError(
            "Figures need matplotlib; install it with `pip install 'orderless[report]'`."
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure2(summaries: list[dict[str, Any]]) -> Figure:
    """Average accuracy against normalized variance: total on the left, order alone on the right.

    One row per summary, one marker per method. Each faint dot is one order: its average and its
    share of the variance; the marker stands at the mean of its dots on both axes.
    """
    shown = [s for s in summaries if s["score_kind"] == "accuracy"]
    if not shown:
        raise ReportError("Figure 2 needs a benchmark whose scores are accuracies.")
    figure = new_figure(11.5, 4.6 * len(shown))
    axes = figure.subplots(len(shown), 2, squeeze=False, sharex="row", sharey="row")
    for row, summary in zip(axes, shown, strict=True):
        styles = method_styles(list(summary["methods"]))
        _scatter(row[0], summary, styles, "normalized_variance", "order_contributions")
        _scatter(
            row[1],
            summary,
            styles,
            "normalized_order_variance",
            "order_contributions_within_seed",
        )
        _variance_scale(row[0], summary)
        _name_the_undrawn(row[0], summary)
        row[1].tick_params(labelleft=True)
        row[0].set_ylabel("normalized variance, seed and order together")
        row[1].set_ylabel("normalized variance of the order alone")
        row[0].set_title(title(summary), loc="left", fontsize=10)
        row[1].set_title("better: right and down", loc="right", fontsize=8, color="#555555")
        row[1].legend(
            loc="center left",
            bbox_to_anchor=(1.02, 0.5),
            frameon=False,
            fontsize=8,
            borderaxespad=0,
        )
    return figure


def method_styles(names: list[str]) -> dict[str, tuple[str, str, bool]]:
    """method -> (colour, marker, filled): a method, its + WPF twin and its tuned
    kin (drawn smaller) share colour and shape."""
    styles, unknown = {}, 0
    for name in names:
        style = describe(name).style
        if style is None:
            style = Style(*OTHER_STYLES[unknown % len(OTHER_STYLES)])
            unknown += 1
        over_particles = any(describe(other).base == name for other in names)
        styles[name] = (style.colour, style.marker, not over_particles)
    return styles


def _scatter(
    axes: Axes,
    summary: dict[str, Any],
    styles: dict[str, tuple[str, str, bool]],
    variance: str,
    contributions: str,
) -> None:
    drawn = {n: e for n, e in summary["methods"].items() if e[variance] is not None}
    for name, entry in drawn.items():
        colour, marker, filled = styles[name]
        axes.scatter(
            [100 * value for value in entry["order_averages"]],
            entry[contributions],
            s=7,
            color=colour,
            alpha=0.35,
            linewidths=0,
        )
        axes.scatter(
            100 * entry["average"],
            entry[variance],
            s=(210 if marker == "*" else 85) / (2 if describe(name).tuned else 1),
            marker=marker,
            facecolors=colour if filled else "white",
            edgecolors="white" if filled else colour,
            linewidths=0.6 if filled else 1.4,
            label=method_label(name),
            zorder=3,
        )
    axes.set_xlabel("average accuracy, %")
    axes.grid(True, color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _name_the_undrawn(axes: Axes, summary: dict[str, Any]) -> None:
    """Below the panel, the methods that have no place in it."""
    entries = summary["methods"].items()
    missing = [method_label(n) for n, e in entries if e["normalized_variance"] is None]
    if missing:
        why = "Not drawn (a task's mean accuracy is 0, so normalized variance is undefined): "
        axes.annotate(
            textwrap.fill(why + ", ".join(missing), 64),
            (0, 0),
            (0, -34),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize=8,
        )


def _variance_scale(axes: Axes, summary: dict[str, Any]) -> None:
    """Logarithmic, with a linear stretch at the bottom: a variance of exactly 0 has its place."""
    names = ("normalized_variance", "normalized_order_variance")
    values = [entry[name] for entry in summary["methods"].values() for name in names]
    positive = [value for value in values if value is not None and value > 1e-12]
    if not positive:
        return
    threshold = 10.0 ** math.floor(math.log10(min(positive)))
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.4)
    axes.set_ylim(bottom=-0.15 * threshold)


def figure1(
    positions: NDArray[Any],
    log_weights: NDArray[Any],
    steps: NDArray[Any],
    *,
    panels: int = 6,
    heading: str = "",
    seed: int = 0,
) -> Figure:
    """The particles' density during training: one t-SNE over all snapshots, Gaussians scaled by
    weight.

    Args:
        positions: ``[S, N, P]``, all particles at S moments (random projections serve).
        log_weights: ``[S, N]``, normalised or not.
        steps: ``[S]``, the step of each snapshot.
        panels: at most so many snapshots are drawn, evenly spread, first and last included.
    """
    if positions.ndim != 3 or log_weights.shape != positions.shape[:2] or len(steps) < 1:
        raise ReportError(
            "Snapshots must hold positions [S, N, P], log_weights [S, N] and step [S], got "
            f"{list(positions.shape)}, {list(log_weights.shape)} and {list(steps.shape)}."
        )
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(panels, len(steps))).round().astype(int))
    places = embed_snapshots(positions[chosen].astype(np.float64), seed)
    weights = np.exp(log_weights[chosen] - log_weights[chosen].max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)

    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure = new_figure(3.3 * columns + 0.9, 3.3 * rows + (0.5 if heading else 0.2))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    low, high = places.min(axis=(0, 1)), places.max(axis=(0, 1))
    spread = float((high - low).max()) or 1.0
    bandwidth = spread / 22
    grid = [np.linspace(low[i] - 3 * bandwidth, high[i] + 3 * bandwidth, 160) for i in range(2)]
    for axis in axes.flat[len(chosen) :]:
        axis.set_visible(False)
    for axis, place, weight, step in zip(axes.flat, places, weights, steps[chosen], strict=False):
        density = _density(place, weight, grid, bandwidth)
        image = axis.imshow(
            density / density.max(),
            extent=(grid[0][0], grid[0][-1], grid[1][0], grid[1][-1]),
            origin="lower",
            cmap="cividis",
            vmin=0,
            vmax=1,
            aspect="auto",
        )
        axis.scatter(*place.T, s=3, color="white", alpha=0.35, linewidths=0)
        effective = 1 / float((weight**2).sum())
        axis.set_title(f"step {int(step)}, ESS {effective:.1f}", fontsize=9)
        axis.set(xticks=[], yticks=[])
    figure.supxlabel("t-SNE 1", fontsize=9)
    figure.supylabel("t-SNE 2", fontsize=9)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 1])
    bar.set_label("weighted density of particles, share of the panel's peak", fontsize=8)
    if heading:
        figure.suptitle(heading, fontsize=10)
    return figure


def embed_snapshots(snapshots: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """[S, N, P] -> [S, N, 2] by one t-SNE over all S * N points: the panels share their axes."""
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped]
    except ImportError as error:
        raise ReportError(
            "Figure 1 needs scikit-learn; install it with `pip install 'orderless[report]'`."
        ) from error
    points = snapshots.reshape(-1, snapshots.shape[-1])
    if len(points) < 4:
        raise ReportError(f"Figure 1 needs at least 4 particles x snapshots, got {len(points)}.")
    perplexity = min(30.0, (len(points) - 1) / 3)
    embedding = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return np.asarray(embedding, dtype=np.float64).reshape(*snapshots.shape[:2], 2)


def _density(
    places: NDArray[np.float64],
    weights: NDArray[np.float64],
    grid: list[NDArray[np.float64]],
    bandwidth: float,
) -> NDArray[np.float64]:
    """sum_i w_i N(x; y_i, bandwidth^2 I) on the grid, ``[len(y), len(x)]``, up to a constant."""
    across, upward = (
        np.exp(-0.5 * ((grid[i][:, None] - places[None, :, i]) / bandwidth) ** 2) for i in range(2)
    )
    return (upward * weights) @ across.T


def snapshot_figures(directory: str | Path, out: str | Path) -> list[Path]:
    """Figure 1 for every ``directory/snapshots/*.st``, as ``out/figure1-NAME.png``."""
    written = []
    for path in sorted((Path(directory) / "snapshots").glob("*.st")):
        figure = figure1(*load_snapshots(path), heading=path.stem)
        written.append(save(figure, Path(out) / f"figure1-{path.stem}.png"))
    return written


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    figure.savefig(path, dpi=150)
    return path
