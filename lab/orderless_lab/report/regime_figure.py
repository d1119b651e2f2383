"""The figure of the map of when weighting helps: gain against movement and ESS, scores by rate."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from orderless_lab.storage.typed import Setting

from .charts import legend_beside, method_styles, new_figure, tidy, variance_scale
from .paper import method_label
from .regime import COMBINES, Point, RegimeSummary, chosen, inits, sizes, weighings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = {"fresh": "o", "perturb": "s"}
VARIANT_MARKERS = "o^v<>DPX*"
COMBINE_COLOURS = {"accuracy": "#D55E00", "logits": "#009E73", "probs": "#0072B2"}


def regime_figure(summary: RegimeSummary) -> Figure:
    """Four panels: gain by movement, gain by kind of weights, accuracy and order variance."""
    points, settings = summary.points, summary.settings
    batch = settings.get("batch_size")
    figure = new_figure(12.5, 9.2)
    panels = moved, ess, accuracy, variance = figure.subplots(2, 2).flatten()
    _gain_against_movement(figure, moved, points)
    _gain_against_ess(ess, points)
    _by_rate(accuracy, points, "average", 100.0, batch)
    accuracy.set_ylabel("average accuracy, %")
    _by_rate(variance, points, "order_variance", 1.0, batch)
    variance_scale(variance, [p.accuracy.order_variance for p in points], tiny=1e-7)
    variance.set_ylabel("variance of the order alone")
    titles = ("Where weighting helps", "Other weights, other ways to combine", "Accuracy")
    for axes, title in zip(panels, (*titles, "Order variance"), strict=True):
        axes.set_title(title, loc="left", fontsize=10)
        tidy(axes)
    moved.legend(frameon=False, fontsize=8)
    for axes in (ess, variance):
        legend_beside(axes)
    figure.suptitle(
        f"SplitMNIST ({settings.get('source')}), domain, batch {batch}, "
        f"{summary.orders} orders x {summary.seeds} seeds",
        fontsize=11,
    )
    return figure


def _gain_against_movement(figure: Figure, axes: Axes, points: list[Point]) -> None:
    from matplotlib.colors import LogNorm

    scale = LogNorm(1.0, max(sizes(points) + [2]))
    for init, n in itertools.product(inits(points), sizes(points)):
        found = chosen(points, "wpf", init=init, n=n)
        moved = [p.moved for p in found]
        gains = [[100 * value for value in p.gains("accuracy")] for p in found]
        for x, (_, low, high) in zip(moved, gains, strict=True):
            axes.plot([x, x], [low, high], color="#999999", linewidth=0.8, zorder=1)
        image = axes.scatter(
            moved,
            [gain[0] for gain in gains],
            c=[p.ess for p in found],
            norm=scale,
            cmap="viridis",
            marker=MARKERS.get(init, "D"),
            s=90 if n == max(sizes(points)) else 35,
            edgecolors="black",
            linewidths=0.6,
            label=f"{init}, N={n}",
            zorder=3,
        )
    gained = [abs(100 * p.gains("accuracy")[0]) for p in chosen(points, "wpf")]
    reach = max(gained, default=0.0) or 1.0
    axes.set_ylim(-1.5 * reach, 1.5 * reach)  # intervals of few seeds reach far beyond
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("how far particles moved, mean |x_T - x_0| / |x_0|")
    axes.set_ylabel("gain of weighting over averaging, points of accuracy")
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.set_label("effective sample size at the end", fontsize=8)


def _gain_against_ess(axes: Axes, points: list[Point]) -> None:
    n = max(sizes(points))
    for weighing, marker in zip(weighings(points), VARIANT_MARKERS, strict=False):
        found = chosen(points, "wpf", n=n, weighing=weighing)
        for combine in COMBINES:
            axes.scatter(
                [p.ess for p in found],
                [100 * p.gains(combine)[0] for p in found],
                marker=marker,
                s=34,
                facecolors="none",
                edgecolors=COMBINE_COLOURS[combine],
                linewidths=1.2,
            )
        axes.scatter([], [], marker=marker, color="#555555", s=34, label=weighing.words)
    for combine in COMBINES:
        axes.scatter([], [], marker="s", color=COMBINE_COLOURS[combine], s=34, label=combine)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel(f"effective sample size of the weights that answer, of N={n}")
    axes.set_ylabel("gain over averaging, points")


def _by_rate(axes: Axes, points: list[Point], measure: str, factor: float, batch: Setting) -> None:
    """Draw a line per method; the Gaussian-sum filter by the rate of its first step, B sigma^2."""
    n, init = max(sizes(points)), inits(points)[0]
    first = batch if isinstance(batch, int) else 1
    lines = [(m, c) for m in ("wpf", "averaging") for c in ("accuracy", "probs")]
    lines += [(method, "accuracy") for method in ("gd", "adam", "gsf")]
    for method, combine in lines:
        _, colour, marker, *_ = method_styles([method])[method]
        many = method in ("wpf", "averaging")
        where = None if method == "gsf" else init
        found = chosen(points, method, init=where, n=n if many else None)
        axes.plot(
            [(p.rate or 0.0) * (first if method == "gsf" else 1) for p in found],
            [factor * getattr(p.scores(combine), measure) for p in found],
            color=colour,
            marker=marker,
            markersize=9 if marker == "*" else 5,
            linestyle="--" if combine == "probs" or method == "adam" else "-",
            markerfacecolor="white" if combine == "probs" else colour,
            linewidth=1.2,
            label=f"{method_label(method)}, {combine}" if many else method_label(method),
        )
    for point in chosen(points, "rb"):
        value = factor * getattr(point.accuracy, measure)
        colour = method_styles(["rb"])["rb"].colour
        axes.axhline(value, color=colour, linestyle=":", linewidth=1.6, label=method_label("rb"))
    axes.set_xscale("log")
    axes.set_xlabel(f"learning rate ({init}, N={n}); Gaussian-sum filter: B sigma^2")
