"""Table 2: our returns on ProcGen's games beside the paper's, and what the paper's budget costs."""

from __future__ import annotations

import math
from pathlib import Path

from docs.tools.sections import PROSE, Source, claims_section, page, provenance, remarks

from orderless.report import MethodSummary, Summary
from orderless.report.columns import (
    decimal,
    row_label,
    seen_interval,
    seen_variance,
    small,
    title,
)
from orderless.report.paper import TABLE_2, benchmark_label, method_label, published
from orderless.report.summary import Claim
from orderless.report.tables import markdown_table

# The paper's lifelong runs and cloning data: levels, steps (samples) each, particles, orders.
PAPER_LEVELS, PAPER_STEPS, PAPER_PARTICLES, PAPER_ORDERS = 15, 2_000_000, 100, 10
TEXT = PROSE["table2"]


def table2_page(sources: list[Source]) -> str | None:
    """The page as Markdown; None without a report of these benchmarks."""
    sources = [source for source in sources if source.summary.benchmark in TABLE_2]
    if not sources:
        return None
    summaries = [source.summary for source in sources]
    kinds = [[s for s in summaries if s.benchmark == benchmark] for benchmark in TABLE_2]
    parts = [*remarks(sources[0], "table2.remarks.txt"), *map(_section, sources)]
    parts += [claims_section(kinds, f"{TEXT['claims']}\n"), _cost_section(summaries)]
    return page("Table 2, measured", TEXT["words"], *parts)


def _section(source: Source) -> str:
    summary = source.summary
    table = published(summary.benchmark, summary.scenario)
    levels = summary.task_names or []
    cloning = summary.benchmark == "procgen-bc"
    rows = []
    for name, entry in summary.methods.items():
        paper = [f"{number:.2f}" for number in table[name]] if name in table else ["-", "-"]
        rows.append(
            [
                method_label(name),
                *paper,
                decimal(entry.average),
                seen_interval(entry, decimal),
                *([decimal(entry.average_probs)] if cloning else []),
                small(seen_variance(entry, "variance")),
                small(seen_variance(entry, "order_variance")),
                *(decimal(average) for average in entry.task_averages),
                decimal(entry.ess_final, 1),
                f"{entry.seeds} x {entry.orders}",
            ]
        )
    headings = ["method", "paper", "paper's variance", "average", "95 % interval"]
    headings += [*(["probs"] if cloning else []), "variance", "of order", *levels, "ESS"]
    lines = [f"## {title(summary)}\n", _budget(summary), _expert(summary), provenance(source)]
    lines.append(markdown_table([*headings, "seeds x orders"], rows))
    differences = [
        [claim.claim.replace(" is above ", " - "), _interval(claim)]
        for claim in summary.claims
        if claim.measure == "average" and claim.difference is not None
    ]
    if differences:
        heading = ["paired difference of averages", "value and 95 % interval"]
        lines.append(markdown_table(heading, differences))
    lines.append("".join(f"- {note}\n" for note in summary.notes))
    lines.append(_along_the_order(summary))
    picture = Path(f"{source.path.with_suffix('')}-figure3.png")
    if picture.exists():
        lines.append(f"![Returns over environment steps]({picture.name})\n\n{TEXT['caption']}\n")
    return "\n".join(line for line in lines if line)


def _along_the_order(summary: Summary) -> str:
    """Returns by place in the order and, where weights move, which terms of the loss move them."""
    places = range(1, len(summary.task_names or []) + 1)
    methods = summary.methods
    weighed = any(entry.weight_spread for entry in methods.values())
    terms = ("policy", "value", "entropy") if weighed else ()
    rows = []
    for name, entry in methods.items():
        spreads = [entry.weight_spread.get(term, []) for term in terms]
        moved = [" / ".join(map(small, by_place)) or "-" for by_place in spreads]
        rows.append([row_label(name, methods), *map(decimal, entry.place_averages), *moved])
    headings = ["method", *(f"level at place {place}" for place in places)]
    headings += [f"weights by {term}" for term in terms]
    text = f"{TEXT['places']} {TEXT['spread']}" if weighed else TEXT["places"]
    return f"{text}\n\n{markdown_table(headings, rows)}" if len(places) > 1 else ""


def _interval(claim: Claim) -> str:
    low, high = claim.interval or (math.nan, math.nan)
    return f"{claim.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def _budget(summary: Summary) -> str:
    """What our figures were made with, and what the paper's."""
    cloning, passes = summary.benchmark == "procgen-bc", _amount(summary, "epochs")
    ours = (
        f"{_amount(summary, 'transitions'):,} transitions per level, "
        f"{passes} {'pass' if passes == 1 else 'passes'}"
        if cloning
        else f"{_amount(summary, 'steps_per_level'):,} environment steps per level"
    )
    theirs = f"{PAPER_STEPS:,} {'samples' if cloning else 'environment steps'} per level"
    words = TEXT["budget"].format(
        tasks=len(summary.task_names or []),
        levels=summary.settings["levels"],
        ours=ours,
        particles=summary.settings["particles"],
        theirs=theirs,
        paper_levels=PAPER_LEVELS,
        paper_particles=PAPER_PARTICLES,
        paper_orders=PAPER_ORDERS,
    )
    return f"{words}\n"


def _amount(summary: Summary, setting: str) -> int:
    value = summary.settings[setting]
    if not isinstance(value, int):
        raise ValueError(f"{setting} must be a number, got {value!r}")
    return value


def _expert(summary: Summary) -> str:
    """Whom the clones imitate, and what it is worth."""
    facts = summary.expert
    if facts is None:
        return ""
    worth = {
        f"{where}_{who}": f"{measured.mean:.3f} +- {measured.standard_error:.3f}"
        for where, both in facts.returns.items()
        for who, measured in both.items()
    }
    on_levels = ", ".join(map(decimal, facts.level_returns))
    about = {"network": facts.network, "steps": facts.steps, "levels": facts.levels}
    return TEXT["expert"].format(**about, **worth, on_levels=on_levels) + "\n"


def _cost_section(summaries: list[Summary]) -> str:
    """Throughput as measured, and hours for the paper's budget at that rate."""
    fastest: dict[tuple[str, str], tuple[float, float, int, str]] = {}
    for summary in summaries:
        label = benchmark_label(summary.benchmark)
        for name, entry in summary.methods.items():
            if entry.duration and entry.particles is not None:
                found = *_cost(summary, entry), entry.particles, summary.scenario
                fastest[label, name] = max(found, fastest.get((label, name), found))
    rows = [
        [f"{label}, {game}", method_label(name), str(n), f"{rate:,.0f}", f"{hours:,.0f}"]
        for (label, name), (rate, hours, n, game) in fastest.items()
    ]
    headings = ["benchmark", "method", "particles", "steps/s", "hours at the paper's budget"]
    table = markdown_table(headings, rows, left=2)
    return f"## What the preset `paper` would cost\n\n{TEXT['cost']}\n\n{table}"


def _cost(summary: Summary, entry: MethodSummary) -> tuple[float, float]:
    """Steps per second over all cells of a row, and hours for all orders of the paper."""
    levels, n = len(summary.task_names or []), entry.particles or 1
    each = (
        _amount(summary, "transitions") * _amount(summary, "epochs")
        if summary.benchmark == "procgen-bc"
        else _amount(summary, "steps_per_level")
    )
    scoring = entry.scoring_duration or 0.0
    learning = entry.duration - scoring
    seconds = learning * PAPER_LEVELS * PAPER_STEPS / (levels * each)
    # before the first level and after every one, on all of them
    seconds += scoring * PAPER_LEVELS * (PAPER_LEVELS + 1) / (levels * (levels + 1))
    more = PAPER_PARTICLES / n if n > 1 else 1.0
    hours = seconds / entry.cells * PAPER_ORDERS * more / 3600
    return entry.cells * levels * each / learning, hours
