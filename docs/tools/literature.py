"""The page that sets single networks at the literature's settings beside published figures."""

import numpy as np
from docs.tools.sections import PROSE, Results, Row, page, shared, table

from orderless.writing import percent
from orderless_lab.report import MethodSummary
from orderless_lab.report.columns import title
from orderless_lab.report.paper import HSU_2018, VAN_DE_VEN, Fractions, method_label

COLUMNS = {
    **shared("method"),
    "ours": lambda row: percent(row.entry.average),
    "+-": lambda row: percent(_deviation(row.entry)),
    "Hsu et al.": lambda row: _published(HSU_2018, row),
    "van de Ven": lambda row: _published(VAN_DE_VEN, row),
    **shared("seeds x orders"),
}


def literature_page(results: Results) -> str | None:
    """SplitMNIST at the preset ``strong`` beside the literature; None without such a report."""
    parts = []
    for source in results.sources:
        summary = source.summary
        if (summary.preset, summary.benchmark) == ("strong", "splitmnist"):
            parts += [f"## {title(summary)}\n", source.provenance(), table(COLUMNS, source.rows)]
            parts += _with_equal_seeds(summary.methods)
    heading = "SplitMNIST as the literature runs it"
    return page(heading, PROSE["literature"]["words"], *parts) if parts else None


def _with_equal_seeds(methods: dict[str, MethodSummary]) -> list[str]:
    """The averages over equally many seeds: a row must not look better, or nearer to a published
    figure, because it was run longer."""
    fewest = min(entry.seeds for entry in methods.values())
    return [
        f"{method_label(name)} has {entry.seeds} seeds where others have {fewest}: over its "
        f"first {fewest} alone it is {percent(float(np.mean(entry.seed_averages[:fewest])))}. "
        "The further ones were run after those had been seen.\n"
        for name, entry in methods.items()
        if entry.seeds > fewest
    ]


def _published(figures: Fractions, row: Row) -> str:
    return percent(figures.get(row.summary.scenario, {}).get(row.name))


def _deviation(entry: MethodSummary) -> float | None:
    """Sample deviation of the average over seeds, or over orders where there is one seed."""
    runs = entry.seed_averages if entry.seeds > 1 else entry.order_averages
    return float(np.std(runs, ddof=1)) if len(runs) > 1 else None
