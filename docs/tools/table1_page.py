"""Table 1: our accuracies and variances beside the paper's, then its claims one by one."""

from __future__ import annotations

from pathlib import Path

from docs.tools.exact_page import alone
from docs.tools.product_page import of_product
from docs.tools.sections import Source, claims_section, page, provenance, remarks

from orderless.report import MethodSummary
from orderless.report.columns import (
    VARIED,
    decimal,
    percent,
    seen_interval,
    seen_variance,
    small,
    title,
)
from orderless.report.paper import TABLE_1, method_label
from orderless.report.tables import markdown_table

HEADINGS = ["method", "paper", "paper's norm. var.", "average", "95 % interval", "logits", "probs"]
HEADINGS += ["variance", "of order", "of seed", "norm. var.", "norm. order", "worst order"]
HEADINGS += ["forgetting", "ESS", "seeds x orders"]
CAPTIONS = {
    "figure2": "Average accuracy against normalized variance; a faint dot is one order",
    "figure1": "Weighted density of the particles during training, one t-SNE for all panels",
}


def table1_page(sources: list[Source]) -> str | None:
    """Our figures beside the paper's Table 1, then claim by claim; None without a report."""
    sources = [
        source
        for source in sources
        if source.summary.preset != "strong"
        and source.summary.benchmark in TABLE_1
        and not alone(source.summary)
        and not of_product(source)
    ]
    if not sources:
        return None
    parts = remarks(sources[0], "table1.remarks.txt")
    parts += map(_benchmark_section, sources)
    parts.append(claims_section("table1", [[source.summary for source in sources]]))
    return page("table1", "Table 1, measured", *parts)


def _benchmark_section(source: Source) -> str:
    summary = source.summary
    published = TABLE_1[summary.benchmark] if summary.scenario == "domain" else {}
    rows, below = [], []
    for name, entry in summary.methods.items():
        paper = ["-", "-"]
        if name in published:
            average, variance = published[name]
            paper = [percent(average), f"{variance:.3f}"]
            if entry.average < average:
                words = f"{percent(entry.average)} against {percent(average)}"
                below.append(f"{method_label(name)} ({words})")
        rows.append([method_label(name), *paper, *_figures(entry)])
    lines = [f"## {title(summary)}\n", provenance(source), markdown_table(HEADINGS, rows)]
    if published:
        lines.append(f"Below the paper's average: {', '.join(below) or 'no row'}.\n")
    if summary.notes:
        lines.append("".join(f"- {note}\n" for note in summary.notes))
    stem = source.path.with_suffix("")
    pictures = {Path(f"{stem}-{name}.png"): caption for name, caption in CAPTIONS.items()}
    lines += [f"![{caption}]({p.name})\n" for p, caption in pictures.items() if p.exists()]
    return "\n".join(lines)


def _figures(entry: MethodSummary) -> list[str]:
    return [
        percent(entry.average),
        seen_interval(entry, percent),
        *map(percent, (entry.average_logits, entry.average_probs)),
        *(small(seen_variance(entry, name)) for name in VARIED),
        *map(percent, (entry.worst_order, entry.forgetting)),
        decimal(entry.ess_final, 1),
        f"{entry.seeds} x {entry.orders}",
    ]
