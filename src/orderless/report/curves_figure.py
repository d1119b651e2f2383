"""Figure 3 of the paper, from our own runs: returns over environment steps, level after level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..methods import describe
from .cells import Cell, group_key
from .figures import method_styles, new_figure
from .page.data import series
from .tables import row_label, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN = "#000000"


def figure3(summaries: list[dict[str, Any]], cells: list[Cell]) -> Figure | None:
    """One panel per game: each method's mean over its cells; None where no cell has a curve.

    As in the paper, PPO and PPO + WPF are drawn with a band, from the lowest cell to the highest;
    the other methods are thin lines. Dotted lines: a new level.
    """
    panels = []
    for summary in summaries:
        key = (summary["benchmark"], summary["scenario"], summary["preset"])
        ours = [cell for cell in cells if group_key(cell) == key]
        curves = series(ours, "curves", "return", "episode return")
        if curves is not None:
            panels.append((summary, ours[0], curves))
    if not panels:
        return None
    figure = new_figure(9.5, 3.6 * len(panels))
    axes = figure.subplots(len(panels), 1, squeeze=False)
    for axis, (summary, cell, curves) in zip(axes[:, 0], panels, strict=True):
        _draw(axis, curves, summary["methods"])
        for switch in _switches(cell):
            axis.axvline(switch, color="#999999", linewidth=0.8, linestyle=":")
        axis.set_title(title(summary), loc="left", fontsize=10)
    return figure


def _draw(axis: Axes, curves: dict[str, Any], methods: dict[str, Any]) -> None:
    for name, (colour, _, _) in method_styles(list(curves["lines"])).items():
        line, main = curves["lines"][name], name in ("ppo", "ppo+wpf")
        if name == "ppo":
            colour = PLAIN  # kin share a colour, but two bands in one cannot be told apart
        mean, low, high = (
            [float("nan") if value is None else value for value in line[part]]
            for part in ("mean", "low", "high")
        )
        axis.plot(
            curves["steps"],
            mean,
            color=colour,
            linewidth=1.8 if main else 0.8,
            linestyle="-" if describe(name).base is not None else "--",
            label=row_label(name, methods),
        )
        if main:
            axis.fill_between(curves["steps"], low, high, color=colour, alpha=0.12, lw=0)
    axis.set_xlabel("environment steps")
    axis.set_ylabel("normalised return")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)


def _switches(cell: Cell) -> list[float]:
    """The steps at which the next level begins; curves hold as many equal bins of each."""
    steps, levels = cell["curves"]["step"], len(cell["order"])
    width = (steps[1] - steps[0]) if len(steps) > 1 else 0.0
    end = steps[-1] + width / 2
    return [end * place / levels for place in range(1, levels)]
