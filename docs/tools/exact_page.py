"""The page of the exact filter: what a learner without any order reaches."""

from docs.tools.sections import PROSE, Source, page, provenance

from orderless.report import Summary
from orderless.report.columns import seen_variance, title
from orderless.writing import decimal, markdown_table, percent, small

HEADINGS = ["benchmark", "map", "maps x features", "average", "probs", "order variance"]
HEADINGS += ["disagreement", "ECE", "seeds x orders", "seconds per order"]


def alone(summary: Summary) -> bool:
    """Whether a report is of the exact filter and of nothing else."""
    return list(summary.methods) == ["rb"]


def exact_page(sources: list[Source]) -> str | None:
    """Reports of `rb` by itself in one table; None without one."""
    chosen = [source for source in sources if alone(source.summary)]
    chosen.sort(key=lambda source: _place(source.summary))
    if not chosen:
        return None
    parts = [
        f"## {_name(s.summary)}: {_map(s.summary)}, {s.summary.settings['rb_features']:,} features"
        f"\n\n{provenance(s)}"
        for s in chosen
    ]
    table = markdown_table(HEADINGS, [_row(source.summary) for source in chosen])
    answer, words = PROSE["exact"]["answer"], PROSE["exact"]["words"]
    return page("The exact filter, measured", answer, table, f"{words}\n", *parts)


def _row(summary: Summary) -> list[str]:
    entry, settings = summary.methods["rb"], summary.settings
    return [
        _name(summary),
        _map(summary),
        f"{settings['rb_particles']} x {settings['rb_features']}",
        *map(percent, (entry.average, entry.average_probs)),
        small(seen_variance(entry, "order_variance")),
        small(entry.disagreement),
        decimal(entry.ece),
        f"{entry.seeds} x {entry.orders}",
        f"{summary.duration / entry.cells:.0f}",
    ]


def _place(summary: Summary) -> tuple[bool, bool, float]:
    """Class-incremental first, digits first, then the better the later."""
    scenario, digits = summary.scenario != "class", summary.benchmark != "splitmnist"
    return scenario, digits, summary.methods["rb"].average


def _map(summary: Summary) -> str:
    kind = summary.settings.get("rb_map")  # older reports do not say
    return {"auto": "leaves", None: "convolution"}.get(kind, kind)


def _name(summary: Summary) -> str:
    """Without the settings that `rb` does not read."""
    tasks = ", random tasks" if summary.settings.get("assign") == "random" else ""
    return f"{title(summary).split(',')[0]}, {summary.scenario}{tasks}"
