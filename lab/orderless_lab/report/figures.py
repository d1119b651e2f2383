"""The paper's figures 1 to 3 for our own runs, as PNG."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderless.io import write_atomically

from ..experiments.record import Run
from ..methods import describe
from ..paper import method_label
from . import charts
from .columns import row_label, title
from .density import MARGIN, Frames, evenly
from .reading import readable
from .summary import ReportError, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 160  # of a density's grid
PLAIN = "#000000"


def draw_all(
    run: Run, summaries: Sequence[Summary], frames: Sequence[Frames]
) -> Iterator[tuple[str, Figure]]:
    """All figures for which a run has data, with their names."""
    if not all(summary.returns for summary in summaries):
        yield "figure2", figure2(summaries)
    if (curves := figure3(run, summaries)) is not None:
        yield "figure3", curves
    yield from ((f"figure1-{each.name}", figure1(each)) for each in frames)


def figure1(frames: Frames, *, panels: int = 6) -> Figure:
    """The density of the particles, Gaussians scaled by weight, in at most `panels` snapshots."""
    chosen = evenly(len(frames.steps), panels)
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure = charts.new_figure(3.3 * columns + 0.9, 3.3 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(chosen) :]:
        axis.set_visible(False)
    for axis, frame in zip(axes.flat, chosen, strict=False):
        image = axis.imshow(
            frames.density(frame, SIZE),
            extent=(-MARGIN, 1 + MARGIN, -MARGIN, 1 + MARGIN),
            origin="lower",
            cmap="cividis",
            vmin=0,
            vmax=1,
            aspect="auto",
        )
        axis.scatter(*frames.places[frame].T, s=3, color="white", alpha=0.35, linewidths=0)
        axis.set_title(f"step {frames.steps[frame]}, ESS {frames.ess(frame):.1f}", fontsize=9)
        axis.set(xticks=[], yticks=[])
    figure.supxlabel("t-SNE 1", fontsize=9)
    figure.supylabel("t-SNE 2", fontsize=9)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 1])
    bar.set_label("weighted density of particles, share of the panel's peak", fontsize=8)
    figure.suptitle(charts.plain(frames.name), fontsize=10)
    return figure


def figure2(summaries: Sequence[Summary]) -> Figure:
    """Average accuracy against normalized variance, total and of the order; a row per summary."""
    shown = [readable(summary) for summary in summaries if not summary.returns]
    if not shown:
        raise ReportError("Figure 2 needs a benchmark whose scores are accuracies.")
    figure = charts.new_figure(11.5, 4.6 * len(shown))
    panels = figure.subplots(len(shown), 2, squeeze=False, sharex="row", sharey="row")
    for (left, right), summary in zip(panels, shown, strict=True):
        label = partial(row_label, methods=summary.methods)
        styles = charts.method_styles(summary.methods, label)
        spots = charts.scatter_spots(summary.methods)
        charts.scatter(left, spots, styles, "total")
        charts.scatter(right, spots, styles, "order")
        charts.variance_scale(left, [value for spot in spots for value in (spot.total, spot.order)])
        entries = summary.methods.items()
        missing = [method_label(n) for n, e in entries if e.normalized_variance is None]
        if missing:
            why = "Not drawn (a task's mean accuracy is 0, so normalized variance is undefined): "
            text = textwrap.fill(charts.plain(why + ", ".join(missing)), 64)
            below: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
            left.annotate(text, (0, 0), (0, -34), **below, fontsize=8)
        score = "average accuracy, %"
        left.set(xlabel=score, ylabel="normalized variance, seed and order together")
        right.set(xlabel=score, ylabel="normalized variance of the order alone")
        right.tick_params(labelleft=True)
        left.set_title(charts.plain(title(summary)), loc="left", fontsize=10)
        right.set_title("better: right and down", loc="right", fontsize=8, color="#555555")
        charts.legend_beside(right)
    return figure


def figure3(run: Run, summaries: Sequence[Summary]) -> Figure | None:
    """Returns over environment steps, one panel per game; None if no cell has a curve.

    As in the paper, PPO and PPO + WPF have a band from the lowest to the highest cell, and the
    other methods are thin lines. Dotted lines mark a new level.
    """
    tables = run.tables()
    curves = [
        charts.series(tables[s.table], "curves", "return", "normalised return") for s in summaries
    ]
    panels = [(s, data) for s, data in zip(summaries, curves, strict=True) if data is not None]
    if not panels:
        return None
    figure = charts.new_figure(9.5, 3.6 * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False)
    for axis, (summary, data) in zip(axes[:, 0], panels, strict=True):
        label = partial(row_label, methods=summary.methods)
        styles = {
            name: style._replace(dashes=(4, 2) if describe(name).base is None else ())
            for name, style in charts.method_styles(data.lines, label).items()
        }
        if "ppo" in styles:  # PPO + WPF has its colour, and two bands need different ones
            styles["ppo"] = styles["ppo"]._replace(colour=PLAIN)
        thin = [name for name in data.lines if name not in ("ppo", "ppo+wpf")]
        charts.draw_series(axis, data, styles, thin=thin)
        cell = tables[summary.table][0]
        # curves have equally many bins of each level
        if steps := [step for step in (cell.curves or {}).get("step", []) if step is not None]:
            end = steps[-1] + (steps[1] - steps[0] if len(steps) > 1 else 0.0) / 2
            for place in range(1, len(cell.order)):
                switch = end * place / len(cell.order)
                axis.axvline(switch, color="#999999", linewidth=0.8, linestyle=":")
        axis.set_xlabel("environment steps")
        axis.set_title(charts.plain(title(summary)), loc="left", fontsize=10)
        charts.legend_beside(axis)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG atomically; a link at this path is replaced, not followed."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomically(path, content.getvalue())
    return path
