"""`python -m docs.tools.theory --figure PATH`: the figure and the tables of docs/theory.md."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from docs.tools.theory_demonstration import (
    SIGMA2,
    CheckedBound,
    check_theorem_1,
    measure_bootstrap,
    measure_curves,
    measure_halvings,
)

from orderless.report.charts import new_figure
from orderless.theory.measure import OrderDependence, plot_order_dependence
from orderless.writing import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDING = 1e-12  # discrepancies below this are rounding, and differ between machines
HALVINGS = [2.0**-power for power in range(3, 10)]
SIZES, NOISES = [32, 256, 2048], [SIGMA2, 2.0**-30]
SWAPS = [1, 4, 8, 14, 20, 28]  # shown in the table


def number(value: float) -> str:
    """Three digits, and no digits at all for rounding."""
    return f"< {ROUNDING:.0e}" if value < ROUNDING else f"{value:.3g}"


def curves_table(curves: Mapping[str, OrderDependence]) -> str:
    """Mean discrepancy at a few numbers of swaps, as Markdown."""
    rows = []
    for label, curve in curves.items():
        means = dict(zip(*curve.by_swaps(), strict=True))
        rows.append([label, *(number(means[swaps]) for swaps in SWAPS)])
    return markdown_table(["filter and losses", *(f"N = {swaps}" for swaps in SWAPS)], rows)


def halvings_table(gaps: Mapping[str, np.ndarray]) -> str:
    """Factor by which the gap falls at each halving of sigma^2, as Markdown."""
    rows = []
    for row, sigma2 in enumerate(HALVINGS):
        falls = [f"{gap[row - 1] / gap[row]:.2f}" if row else "" for gap in gaps.values()]
        pairs = zip((number(gap[row]) for gap in gaps.values()), falls, strict=True)
        rows.append([f"1/{round(1 / sigma2)}", *(text for pair in pairs for text in pair)])
    return markdown_table(
        ["sigma^2", *(text for kind in gaps for text in (f"{kind}: D", "falls by"))], rows
    )


def bootstrap_table(gaps: np.ndarray) -> str:
    """The bootstrap filter's gap against its number of particles, as Markdown."""
    rows = [
        [f"2^{round(np.log2(noise))}", *map(number, row)]
        for noise, row in zip(NOISES, gaps, strict=True)
    ]
    return markdown_table(["noise variance", *(f"{n} particles" for n in SIZES)], rows)


def bounds_table(checked: list[CheckedBound]) -> str:
    """Theorem 1 with the constants of its own proof, as Markdown."""
    rows = []
    for row in checked:
        C = f"{row.constants.C:.3g}" if row.constants.C else "none"  # no two sets to compare
        values = (row.constants.epsilon, row.bound, row.direct, row.measured)
        rows.append([row.losses, row.reading, C, *map(number, values)])
    headings = ["losses", "reading", "C", "epsilon", "Theorem 1", "direct bound", "measured D"]
    return markdown_table(headings, rows, left=2)


def draw(curves: Mapping[str, OrderDependence], gaps: Mapping[str, np.ndarray]) -> Figure:
    """Left: discrepancy against swaps. Right: forwards against backwards as sigma^2 halves."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
    plot_order_dependence(
        curves,
        axes=left,
        title=rf"T = 8 losses in other orders, $\sigma^2$ = 1/{round(1 / SIGMA2)}",
        discrepancy_name="Wasserstein-1 to the given order",
    )
    left.legend(frameon=False, fontsize=8, loc="center", bbox_to_anchor=(0.5, 0.42), ncols=2)
    for kind, gap in gaps.items():
        right.plot(HALVINGS, gap, "o-", ms=4, lw=1.4, label=kind)
    guide = np.array([HALVINGS[-1], HALVINGS[0]])
    lowest = min(gap[-1] for gap in gaps.values())
    right.plot(guide, lowest / 2 * (guide / guide[0]) ** 2, "k--", lw=1, label=r"$\sigma^4$")
    right.set_xscale("log", base=2)
    right.set(yscale="log", xlabel=r"$\sigma^2$", title="Logistic losses, forwards and backwards")
    right.grid(alpha=0.25)
    right.legend(frameon=False, fontsize=8)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.tools.theory", description=__doc__)
    figure = Path("discrepancy_vs_swaps.png")
    parser.add_argument("--figure", type=Path, default=figure, help="where to write it")
    parser.add_argument("--orders", type=int, default=4, help="orders per number of swaps")
    options = parser.parse_args(arguments)
    if options.orders < 1:
        parser.error(f"--orders must be at least 1, got {options.orders}")
    curves = measure_curves(options.orders)
    # In the order of the curves, so that a filter has one colour in both panels.
    kinds = {"sir": "bootstrap (SIR)", "descent": "gradient descent", "weighted": "weighted"}
    gaps = {label: measure_halvings(kind, HALVINGS) for kind, label in kinds.items()}
    options.figure.parent.mkdir(parents=True, exist_ok=True)
    draw(curves, gaps).savefig(options.figure, dpi=130)
    print(curves_table(curves), halvings_table(gaps), sep="\n")
    print(
        bootstrap_table(measure_bootstrap(SIZES, NOISES)), bounds_table(check_theorem_1()), sep="\n"
    )
    print(f"wrote {options.figure}")


if __name__ == "__main__":
    main()
