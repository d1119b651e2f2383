"""The page of the product of task posteriors: its scores beside those of other methods."""

from dataclasses import dataclass, field, replace
from itertools import product

from docs.tools.sections import PROSE, Results, Source, folded, page, shared, table

from orderless.writing import markdown_table, percent, small
from orderless_lab.report import Summary
from orderless_lab.report.columns import seen_variance
from orderless_lab.report.paper import TABLE_1, benchmark_label, method_label
from orderless_lab.storage.typed import decode

OWN = ("product", "product+particles")
SHOWN = {name: method_label(name) for name in ("product", "gd", "wpf", "rb", "joint")}
PEERS = ("gd", "adam", "wpf", "lwf", "joint", "rb")
COLUMNS = {
    **shared("method"),
    "settings": lambda row: _settings(row.summary),
    **shared("average", "probs", "order variance", "seed variance", "seeds x orders"),
    "from": lambda row: f"[JSON]({row.source.path.name})",
}
# Settings that no row shown here reads, or that change no figure.
UNREAD = ("ewc_", "lwf_", "si_", "fisher_", "score_after")
# The table in front: its columns, and the reports that other methods are taken from.
FRONT = {
    "SplitMNIST, domain": "splitmnist-table1-high rb-splitmnist-domain",
    "SplitMNIST, class": "product-splitmnist-class-others rb-splitmnist-class",
    "SplitMNIST, task": "product-splitmnist-task-others",
    "SplitCIFAR100, domain": "splitcifar100-table1 rb-splitcifar100-leaves-domain",
    "SplitCIFAR100, class": "product-splitcifar100-class-others rb-splitcifar100-leaves-class",
}
WIDE = {
    "SplitMNIST, domain": "product-splitmnist-domain-wide",
    "SplitMNIST, class": "product-splitmnist-class-wide",
    "SplitCIFAR100, domain": "product-splitcifar100-wide-domain",
}


def of_product(source: Source) -> bool:
    """Whether a report was made for this page; the others' tables leave it out."""
    return source.path.stem.startswith("product-")


def product_page(results: Results) -> str | None:
    """All scenarios, then what was measured on held-out data; None without a report."""
    if not (chosen := list(filter(of_product, results.sources))):
        return None
    parts = [_front({source.path.stem: source.summary for source in results.sources})]
    parts += [f"{PROSE['product']['words']}\n", "## Every row\n"]
    kinds = {source.summary.table[:2] for source in chosen}
    for kind in product(TABLE_1, ("domain", "class", "task")):
        if kind in kinds:
            parts.append(_every_row([s for s in results.sources if s.summary.table[:2] == kind]))
    content = results.read("product-measured.json") or {"sections": []}
    for each in (decode(Section, section) for section in content["sections"]):
        text = f"{each.text}\n\n{each.table()}"
        tried = each.title.startswith("Settings tried")
        parts.append(folded(each.title, text) if tried else f"## {each.title}\n\n{text}")
    parts.append(folded("Commands", "\n".join(map(Source.provenance, chosen))))
    return page("The product of task posteriors, measured", PROSE["product"]["answer"], *parts)


def _every_row(same: list[Source]) -> str:
    """The rows of one benchmark and scenario, those of the product first."""
    summary = same[0].summary
    own = [row for source in same for row in source.rows if row.name in OWN]
    usual = [s for s in same if s.summary.preset in ("table1", "table1-high")]
    peers = [row for source in usual for row in source.rows if row.name in PEERS]
    text = table(COLUMNS, own + peers, left=2)
    if summary.scenario == "domain":
        paper = ", ".join(
            f"{method_label(method)} {percent(average)}"
            for method, (average, _) in TABLE_1[summary.benchmark].items()
        )
        text += f"\nThe paper's own: {paper}.\n"
    return folded(f"{benchmark_label(summary.benchmark)}, {summary.scenario}", text)


def _front(summaries: dict[str, Summary]) -> str:
    """The product beside its peers: a column for each scenario, "average (order variance)", of
    several merged networks that of their mean prediction."""

    def found(stems: str, method: str) -> str:
        for summary in (summaries[stem] for stem in stems.split() if stem in summaries):
            if method in summary.methods:
                entry = summary.methods[method]
                of_order = seen_variance(entry, "order_variance")
                known = "" if of_order is None else f" ({small(of_order)})"
                score = entry.average_probs if method == OWN[1] else entry.average
                return f"{percent(score)}{known}"
        return ""

    own = {key: f"product-{key.lower().replace(', ', '-')}" for key in FRONT}
    rows = [
        [SHOWN[name], *(found(f"{own[key]} {FRONT[key]}", name) for key in FRONT)] for name in SHOWN
    ]
    wide = [f"{SHOWN[OWN[0]]}, wide", *(found(WIDE.get(key, ""), OWN[0]) for key in FRONT)]
    many = [method_label(OWN[1]), *(found(f"{own[key]}-particles", OWN[1]) for key in FRONT)]
    return markdown_table(["method", *FRONT], [rows[0], many, wide, *rows[1:]])


def with_product(summary: Summary, sources: list[Source]) -> Summary:
    """A report with one row more, where the product was run with its preset."""
    for own in (source.summary for source in sources if of_product(source)):
        if own.table == summary.table and OWN[0] in own.methods:
            return replace(summary, methods={**summary.methods, OWN[0]: own.methods[OWN[0]]})
    return summary


def _settings(summary: Summary) -> str:
    """The preset, and the changes to it that affect a row of this page."""
    words = (summary.command or "").split("&&")[-1].split()
    changes = [word for word in words if "=" in word and not word.startswith(UNREAD)]
    return ", ".join([summary.preset, *changes])


@dataclass(frozen=True)
class Section:
    """Points of benchmarks/product.py or product_kronecker.py; with `rows`, their accuracies with
    some keys down the side and others, the `columns`, along the top."""

    title: str
    text: str
    points: list[dict[str, object]]
    rows: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    left: int = 1

    def table(self) -> str:
        if self.rows:
            return self._crossed()
        keys = list(dict.fromkeys(key for point in self.points for key in point))
        lines = [[_text(point.get(key)) for key in keys] for point in self.points]
        return markdown_table(keys, lines, left=self.left)

    def _crossed(self) -> str:
        scores = {
            (tuple(p[key] for key in self.rows), tuple(p[key] for key in self.columns)): p
            for p in self.points
        }
        down, along = (list(dict.fromkeys(keys)) for keys in zip(*scores, strict=True))
        tops = (zip(self.columns, column, strict=True) for column in along)
        headings = [*self.rows, *(", ".join(f"{k}={v}" for k, v in top) for top in tops)]
        found = {at: _text(point.get("accuracy", "diverged")) for at, point in scores.items()}
        lines = [[*map(_text, row), *(found.get((row, c), "") for c in along)] for row in down]
        return markdown_table(headings, lines, left=len(self.rows))


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "" if value is None else str(value)
