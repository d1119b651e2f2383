"""The page of the exact filter: what a learner without any order reaches."""

from __future__ import annotations

from docs.tools.sections import Source, page, provenance

from orderless.report import Summary
from orderless.report.columns import percent, seen_variance, small, title
from orderless.report.tables import markdown_table

HEADINGS = ["benchmark", "map", "maps x features", "average", "probs", "order variance"]
HEADINGS += ["disagreement", "ECE", "seeds x orders", "seconds per order"]
WORDS = (
    "`rb`: fixed features, an exact Gaussian head on each map, uniform weights. Images come as "
    "they are, without augmentation. *Class*: a column per class. *Domain*: a column per (task, "
    "label), of which the highest decides about the label: that uses the tasks of the training "
    "data, which a method with one column per label does not. *Leaves* have seen no photograph; "
    "*lite2* was trained on ImageNet. *Average* is the mean of the maps' own accuracies in %, "
    "*probs* scores their mean prediction. *Disagreement* is the share of test samples on which "
    "two orders of the tasks say different things. *ECE* is the calibration error of *probs*, a "
    "mean over tasks. The seconds hold learning and every evaluation of all tasks. *Seeds x "
    "orders* counts what was finished. The commands have settings of their own: give each an "
    "`--out` of its own, too. Some rows are of earlier settings: those of *convolution* (the "
    "commands need `--set rb_map=convolution` now, and the ridge came from the evidence), and those "
    "of *lite2*, whose parts had a scale each; now they have one, which probes found better."
)


def alone(summary: Summary) -> bool:
    """Whether a report is of the exact filter and of nothing else."""
    return list(summary.methods) == ["rb"]


def exact_page(sources: list[Source]) -> str | None:
    """Reports of `rb` by itself in one table; None without one."""
    chosen = [source for source in sources if alone(source.summary)]
    chosen.sort(key=lambda source: source.summary.scenario != "class")
    if not chosen:
        return None
    parts = [f"## {_name(source.summary)}\n\n{provenance(source)}" for source in chosen]
    rows = [_row(source.summary) for source in chosen]
    return page("The exact filter, measured", WORDS, markdown_table(HEADINGS, rows), *parts)


def _row(summary: Summary) -> list[str]:
    entry, settings = summary.methods["rb"], summary.settings
    kind = settings.get("rb_map")  # older reports do not say
    return [
        _name(summary),
        {"auto": "leaves", None: "convolution"}.get(kind, kind),
        f"{settings['rb_particles']} x {settings['rb_features']}",
        *map(percent, (entry.average, entry.average_probs)),
        small(seen_variance(entry, "order_variance")),
        small(entry.disagreement),
        "-" if entry.ece is None else f"{entry.ece:.3f}",
        f"{entry.seeds} x {entry.orders}",
        f"{summary.duration / entry.cells:.0f}",
    ]


def _name(summary: Summary) -> str:
    """Without the settings that `rb` does not read."""
    return f"{title(summary).split(',')[0]}, {summary.scenario}"
