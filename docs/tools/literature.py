"""The page that sets single networks at the literature's settings beside published figures."""

import numpy as np
from docs.tools.sections import PROSE, Source, page, provenance

from orderless.report import MethodSummary
from orderless.report.columns import title
from orderless.report.paper import HSU_2018, VAN_DE_VEN, method_label
from orderless.writing import markdown_table, percent

HEADINGS = ["method", "ours", "+-", "Hsu et al.", "van de Ven", "seeds x orders"]


def literature_page(sources: list[Source]) -> str | None:
    """SplitMNIST at the preset ``strong`` beside the literature; None without such a report."""
    parts = []
    for source in sources:
        summary = source.summary
        if (summary.preset, summary.benchmark) != ("strong", "splitmnist"):
            continue
        published = [table.get(summary.scenario, {}) for table in (HSU_2018, VAN_DE_VEN)]
        rows = [
            [
                method_label(name),
                *map(percent, (entry.average, _deviation(entry))),
                *(percent(table.get(name)) for table in published),
                f"{entry.seeds} x {entry.orders}",
            ]
            for name, entry in summary.methods.items()
        ]
        parts += [f"## {title(summary)}\n", provenance(source), markdown_table(HEADINGS, rows)]
        parts += _with_equal_seeds(summary.methods)
    heading = "SplitMNIST as the literature runs it"
    return page(heading, PROSE["literature"]["words"], *parts) if parts else None


def _with_equal_seeds(methods: dict[str, MethodSummary]) -> list[str]:
    """What rows with more seeds than the others have over as many: a row must not look better, or
    nearer to a published figure, for having been run longer."""
    fewest = min(entry.seeds for entry in methods.values())
    return [
        f"{method_label(name)} has {entry.seeds} seeds where others have {fewest}: over its "
        f"first {fewest} alone it is {percent(float(np.mean(entry.seed_averages[:fewest])))}. "
        "The further ones were run after those had been seen.\n"
        for name, entry in methods.items()
        if entry.seeds > fewest
    ]


def _deviation(entry: MethodSummary) -> float | None:
    """Sample deviation of the average over seeds, or over orders where there is one seed."""
    runs = entry.seed_averages if entry.seeds > 1 else entry.order_averages
    return float(np.std(runs, ddof=1)) if len(runs) > 1 else None
