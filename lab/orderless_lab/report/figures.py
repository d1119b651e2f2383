"""The figures of a table by matplotlib: as PNG files, and as SVG in the page."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from orderless import metrics
from orderless.errors import printable

from .columns import written
from .frame import Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OTHERS = [("#777777", marker) for marker in "dp8Ho^vs"]  # for methods without a style
DASHES = ("-", "--", ":", "-.")  # of rows that share a colour
POINTS = 60  # steps at which a curve is drawn
GRID = "#9999994D"
WIDTH = 5.2  # inches: on a phone the text of a page's figures keeps its size


def drawn(table: Table, numbers: pd.DataFrame) -> Iterator[tuple[str, Figure]]:
    """The figures for which the table has data, by name."""
    yield "orders", orders(table, numbers)
    if numbers["normalized_variance"].notna().any():
        yield "figure2", figure2(table, numbers)
    if any(cell.curves for cell in table.cells):
        yield "figure3", curves(table, "curves", "return", "episode return")
    if any((cell.particles or 1) > 1 and cell.trace.get("ess") for cell in table.cells):
        yield "weights", curves(table, "trace", "ess", "effective sample size")


def new_figure(width: float, height: float) -> Figure:
    """A figure with its own canvas: needs no display and does not change pyplot's state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
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


def png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return content.getvalue()


def svg(figure: Figure, name: str) -> str:
    """The figure as an element of a page, in the page's colours: black becomes that of its text.

    `name` keeps the identifiers of several figures apart.
    """
    import matplotlib

    content = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", content.getvalue(), flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])
    return text.replace("#000000", "currentColor")


def looks(table: Table) -> dict[str, dict[str, Any]]:
    """Colour, marker and dashes of each row, and whether its mark is filled: the same method
    without weights is drawn as an outline."""
    free = itertools.cycle(OTHERS)
    bases = {table.rival(name) for name, row in table.rows.items() if row.method.weighted}
    kin: dict[str, int] = {}
    found = {}
    for name, row in table.rows.items():
        style = row.method.style
        colour, marker = (style.colour, style.marker) if style else next(free)
        place = kin[colour] = kin.get(colour, -1) + 1
        found[name] = {
            "label": plain(row.method.label),
            "color": colour,
            "marker": marker,
            "linestyle": DASHES[place % len(DASHES)],
            "markerfacecolor": "none" if name in bases else colour,
        }
    return found


def orders(table: Table, numbers: pd.DataFrame) -> Figure:
    """A dot for every order of every row, the highest row on top."""
    names = numbers["average"].sort_values().index
    styles = looks(table)
    figure = new_figure(WIDTH, 0.8 + 0.5 * len(names))
    axes = figure.subplots()
    factor = 1 if table.returns else 100
    for height, name in enumerate(names):
        values = factor * metrics.order_averages(table.rows[name].scores)
        colour = styles[name]["color"]
        axes.plot(values, [height] * len(values), "o", color=colour, alpha=0.6, markersize=6)
        axes.plot([values.mean()] * 2, [height - 0.16, height + 0.16], color=colour, linewidth=2)
        average = written("score", numbers["average"][name], table.returns)
        text = f"{styles[name]['label']}  {average}"
        axes.text(0, height + 0.26, text, transform=axes.get_yaxis_transform())
    axes.set(yticks=[], ylim=(-0.5, len(names) - 0.2))
    axes.set_xlabel("return" if table.returns else "accuracy, %")
    tidy(axes)
    axes.spines["left"].set_visible(False)
    return figure


def figure2(table: Table, numbers: pd.DataFrame) -> Figure:
    """Average accuracy against normalized variance; a row without variance is not drawn."""
    known = numbers[["average", "normalized_variance"]].dropna()
    figure = new_figure(WIDTH, 4 + 0.12 * len(known))
    axes = figure.subplots()
    for name, look in looks(table).items():
        if name in known.index:
            average, variance = known.loc[name]
            axes.plot(100 * average, variance, markersize=9, **{**look, "linestyle": "none"})
    variances = known["normalized_variance"]
    if variances.max() > 1e-12:  # a logarithmic scale with a linear part, for variances of 0
        threshold = 10.0 ** np.floor(np.log10(variances[variances > 1e-12].min()))
        axes.set_yscale("symlog", linthresh=threshold, linscale=0.4)
        axes.set_ylim(bottom=-0.15 * threshold)
    axes.set(xlabel="average accuracy, %", ylabel="normalized variance")
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def curves(table: Table, record: str, key: str, label: str) -> Figure:
    """A quantity over steps: the mean over runs, with a band from the lowest to the highest."""
    figure = new_figure(WIDTH, 4.2)
    axes = figure.subplots()
    for name, look in looks(table).items():
        values = over_steps(table.rows[name], record, key)
        if values.empty:
            continue
        lines = {key: look[key] for key in ("label", "color", "linestyle")}
        axes.plot(values.index, values.mean(axis=1), **lines)
        low = values.min(axis=1)
        high = values.max(axis=1)
        axes.fill_between(values.index, low, high, color=look["color"], alpha=0.13, linewidth=0)
    end = axes.dataLim.x1
    tasks = len(table.cells[0].order)
    for place in range(1, tasks):
        axes.axvline(end * place / tasks, color="#999999", linewidth=0.8, linestyle=":")
    axes.set(xlabel="training steps", ylabel=label)
    tidy(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def over_steps(row: Row, record: str, key: str) -> pd.DataFrame:
    """A quantity of every run at common steps, a column per run; nothing for a single network's
    trace, whose weight is always 1."""
    runs = []
    for cell in row.cells:
        content = getattr(cell, record) or {}
        points = zip(content.get("step", []), content.get(key, []), strict=False)
        found = pd.DataFrame(points, columns=["step", "value"], dtype=float).dropna()
        if len(found) and (record == "curves" or cell.particles != 1):
            runs.append(found.sort_values("step").to_numpy().T)
    if not runs:
        return pd.DataFrame()
    steps = np.linspace(min(run[0, 0] for run in runs), max(run[0, -1] for run in runs), POINTS)
    values = [np.interp(steps, run[0], run[1], np.nan, np.nan) for run in runs]
    return pd.DataFrame(np.transpose(values), index=steps)
