"""The page of the exact filter."""

from docs.tools.sections import PROSE, Results, page, shared, table

from orderless.writing import decimal, small
from orderless_lab.report import Summary
from orderless_lab.report.paper import benchmark_label

COLUMNS = {
    "benchmark": lambda row: _name(row.summary),
    "map": lambda row: _map(row.summary),
    "maps x features": lambda row: "{rb_particles} x {rb_features}".format(**row.summary.settings),
    **shared("average", "probs", "order variance"),
    "disagreement": lambda row: small(row.entry.disagreement),
    "ECE": lambda row: decimal(row.entry.ece),
    **shared("seeds x orders"),
    "seconds per order": lambda row: f"{row.summary.duration / row.entry.cells:.0f}",
}


def alone(summary: Summary) -> bool:
    """Whether a report has no other method than the exact filter."""
    return list(summary.methods) == ["rb"]


def exact_page(results: Results) -> str | None:
    """One table of all reports of `rb` alone; None if there is none."""
    rows = [row for s in results.sources if alone(s.summary) for row in s.rows]
    if not rows:
        return None
    # class-incremental first, then digits, then by ascending average
    rows.sort(key=lambda r: r.entry.average)
    rows.sort(key=lambda r: (r.summary.scenario != "class", r.summary.benchmark != "splitmnist"))
    parts = [
        f"## {_name(row.summary)}: {_map(row.summary)}, "
        f"{row.summary.settings['rb_features']:,} features\n\n{row.source.provenance()}"
        for row in rows
    ]
    answer, words = PROSE["exact"]["answer"], PROSE["exact"]["words"]
    return page("The exact filter, measured", answer, table(COLUMNS, rows), f"{words}\n", *parts)


def _map(summary: Summary) -> str:
    kind = summary.settings.get("rb_map")  # missing in older reports
    return {"auto": "leaves", None: "convolution"}.get(kind, kind)


def _name(summary: Summary) -> str:
    """The title without the settings that `rb` does not read."""
    tasks = ", random tasks" if summary.settings.get("assign") == "random" else ""
    return f"{benchmark_label(summary.benchmark)}, {summary.scenario}{tasks}"
