"""Table 1: our figures beside the paper's, its claims one by one; and a page of all figures."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from docs.tools.exact_page import alone
from docs.tools.product_page import of_product, with_product
from docs.tools.sections import PROSE, Results, Source, evidence, folded, page, picture, verdicts

from orderless.writing import markdown_table, percent, small
from orderless_lab.report import MethodSummary, Summary
from orderless_lab.report.columns import columns_of, departures, seen_variance, title
from orderless_lab.report.paper import TABLE_1, benchmark_label, method_label, released_scoring

TEXT = PROSE["table1"]
CAPTIONS = {
    "figure2": "Average accuracy against normalized variance; a faint dot is one order",
    "figure1": "Weighted density of the particles during training, one t-SNE for all panels",
}
# rows below the paper's
REFERENCES = {"product": "Product of task posteriors ([own settings](product.md))", "joint": ""}


def table1_page(results: Results) -> str | None:
    """One table for each benchmark, and where the paper's claims hold."""
    if not (sources := _own(results)):
        return None
    front = [source for source in sources if _in_front(source.summary)]
    parts = next(filter(None, (_pictures(source, "figure2") for source in front)), [])
    for benchmark, published in TABLE_1.items():
        label = benchmark_label(benchmark)
        shown = [s.summary for s in front if s.summary.benchmark == benchmark]
        shown[:1] = [with_product(summary, results.sources) for summary in shown[:1]]
        parts += _overview(label, shown, published)
        others = [s.summary for s in sources if s.summary.benchmark == benchmark]
        others = [s for s in others if s.scenario != "domain" and s.preset != "demo"]
        words = f"{label}, class- and task-incremental"
        parts += _overview(words, others, dict.fromkeys(published))
    parts += [f"{TEXT['legend']}\n", "## The paper's claims, one by one\n", f"{TEXT['claims']}\n"]
    for benchmark in TABLE_1:
        domain = [s.summary for s in sources if s.summary.table[:2] == (benchmark, "domain")]
        judged = [s for s in domain if any(c.holds != "not decidable" for c in s.claims)]
        if judged:
            parts.append(folded(benchmark_label(benchmark), verdicts(judged, _setting)))
    answer = results.remarks("table1")
    return page("Table 1, measured", f"{answer}\n\n{TEXT['front']}".strip(), *parts)


def table1_details(results: Results) -> str | None:
    """Every figure with its command, and the evidence on every claim."""
    if not (sources := _own(results)):
        return None
    remarks = results.remarks("table1-details")
    parts = [remarks and f"## Remarks\n\n{remarks}\n", *map(_benchmark_section, sources)]
    parts += [evidence(source.summary) for source in sources]
    return page("Table 1: all figures", TEXT["words"], *parts)


def _own(results: Results) -> list[Source]:
    """The reports of the paper's Table 1; of each benchmark, those nearest to `table1` first."""
    others = [s for s in results.sources if not alone(s.summary) and not of_product(s)]
    own = [source for source in others if source.summary.preset != "strong"]
    return [
        source
        for benchmark in TABLE_1
        for source in sorted(own, key=lambda s: len(departures(s.summary)))
        if source.summary.benchmark == benchmark
    ]


def _in_front(summary: Summary) -> bool:
    """At the low rate nothing is learned yet; other scenarios have no column in the paper; and of
    `table1`'s variants, those in fewer than five orders were tried and not kept."""
    orders = max(entry.orders for entry in summary.methods.values())
    kept = orders >= 5 or (orders > 1 and summary.preset != "table1")
    return summary.scenario == "domain" and not summary.preset.endswith("-low") and kept


def _overview(
    heading: str, summaries: list[Summary], published: Mapping[str, list[float] | None]
) -> list[str]:
    """The paper's rows, and a column for every setting."""
    names = [*published, *(n for n in REFERENCES if any(n in s.methods for s in summaries))]
    groups = {}
    for summary in summaries:
        for kind in ("", "-tuned"):
            rows = {name: summary.methods.get(_tuned(name, kind)) for name in names}
            entries = [e for name, e in rows.items() if e is not None and name != "product"]
            if entries:
                runs = f"{_range(e.seeds for e in entries)} x {_range(e.orders for e in entries)}"
                groups[f"{_setting(summary)}{kind.replace('-', ', ')} ({runs})"] = rows
    lines = []
    for name in names:
        paper = published.get(name)
        cells = [_brief(name, rows[name], paper) for rows in groups.values()]
        if paper is not None or any(cells):
            average = [percent(paper and paper[0])] if any(published.values()) else []
            lines.append([REFERENCES.get(name) or method_label(name), *average, *cells])
    headings = ["method", *(["paper"] if any(published.values()) else []), *groups]
    return [f"## {heading}\n\n{markdown_table(headings, lines)}"] if lines else []


def _tuned(name: str, kind: str) -> str:
    """ewc+wpf -> ewc-tuned+wpf."""
    base, plus, rest = name.partition("+")
    return f"{base}{kind}{plus}{rest}"


def _range(counts: Iterable[int]) -> str:
    ends = sorted(set(counts))
    return str(ends[0]) if len(ends) == 1 else f"{ends[0]}-{ends[-1]}"


def _setting(summary: Summary) -> str:
    """The scenario where it is not the paper's, the optimizer, and what else is not `table1`'s."""
    settings = summary.settings
    adam = settings.get("optimizer") == "adam"
    rate = f"Adam {settings.get('adam_lr'):g}" if adam else f"SGD {settings.get('lr'):g}"
    scenario = [] if summary.scenario == "domain" else [summary.scenario]
    return ", ".join([*scenario, rate, *departures(summary)])


def _brief(name: str, entry: MethodSummary | None, paper: list[float] | None) -> str:
    """ "average / as the code scores it (order variance)", bold if not below the paper's."""
    if entry is None:
        return ""
    by_code = entry.average_logits if released_scoring(name) == "logits" else entry.average
    text = percent(entry.average)
    if by_code is not None and percent(by_code) != text:
        text += f" / {percent(by_code)}"
    if paper is not None and max(entry.average, by_code or 0.0) >= paper[0]:
        text = f"**{text}**"
    of_order = seen_variance(entry, "order_variance")
    notes = [] if of_order is None else [small(of_order)]
    notes += [f"{entry.died} of {entry.cells} broke off"] if entry.died else []
    return f"{text} ({', '.join(notes)})" if notes else text


def _benchmark_section(source: Source) -> str:
    summary, columns = source.summary, columns_of(source.summary)
    published = TABLE_1[summary.benchmark] if summary.scenario == "domain" else {}
    rows, below = [], []
    for name, entry in summary.methods.items():
        paper = ["-", "-"]
        if found := published.get(name.replace("-tuned", "")):
            average, variance = found
            paper = [percent(average), f"{variance:.3f}"]
            if entry.average < average:
                words = f"{percent(entry.average)} against {percent(average)}"
                below.append(f"{method_label(name)} ({words})")
        rows.append([method_label(name), *paper, *(column.text(entry) for column in columns)])
    headings = ["method", "paper", "paper's norm. var.", *(column.heading for column in columns)]
    lines = [f"## {title(summary)}\n", source.provenance(), markdown_table(headings, rows)]
    if published:
        lines.append(f"Below the paper's average: {', '.join(below) or 'no row'}.\n")
    if summary.notes:
        lines.append("".join(f"- {note}\n" for note in summary.notes))
    return "\n".join([*lines, *_pictures(source, *CAPTIONS)])


def _pictures(source: Source, *names: str) -> list[str]:
    """The pictures beside the JSON."""
    stem = source.path.with_suffix("")
    found = (picture(CAPTIONS[name], Path(f"{stem}-{name}.png")) for name in names)
    return list(filter(None, found))
