"""Put tables of lab/results into the README and the pages; with --check, say what differs.

A comment `<!-- table NAME -->` before a table names its description in described/PAGE.toml: `rows`,
each a list of parts, and `columns`, each a heading and a template. In a template, $0 is the row's
first part, and {file:path:format} a value of a file in lab/results (or of "published"): keys joined
by dots, where [key=value,key=value] is the first such object of a list. The format is one of
FORMATS or of Python's. Prose may cite a percentage with a decimal only if such a table has it: one
of the page's own, or one of docs/results.
"""

import functools
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "docs/results").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DESCRIBED = ROOT / "docs/tools/described"
TABLE = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
VALUE = re.compile(r"\{([^{}:]+):([^{}:]+)(?::([^{}:]+))?\}")
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def points(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}"


def score(row: dict[str, float]) -> str:
    """Average ± standard deviation over orders, in points; only 0 itself is written as 0."""
    average, variance = f"{100 * row['average']:.1f}", row["order_variance"]
    if variance is None:
        return average
    deviation = f"{100 * variance**0.5:.1f}" if variance else "0"
    return f"{average} ± {'<0.1' if deviation == '0.0' else deviation}"


FORMATS = {
    "%": lambda value: f"{100 * value:.1f}",
    "yes": lambda value: "yes" if value else "no",
    "score": score,
    "return": lambda row: f"{row['average']:.3f} ± {row['order_variance'] ** 0.5:.3f}",
    "claim": lambda claim: f"{'yes' if claim['holds'] else 'no'} ({points(claim['difference'])})",
    "points": lambda value: f"{value:.1f}" if value else "0",
    "gain": lambda gain: f"{points(gain[0])} ({points(gain[1])} to {points(gain[2])})",
    "ends": lambda interval: f"{interval[0]:+.3f} to {interval[1]:+.3f}",
    "differences": lambda pair: f"{pair['learned']:.1g} / {pair['answered']:.1g}",
}


@functools.cache
def content(name: str) -> Any:
    """The numbers of a file; "none" has none."""
    if name == "none":
        return {}
    if name == "published":
        return tomllib.loads((ROOT / "lab/orderless_lab/paper/published.toml").read_text())
    return json.loads((ROOT / "lab/results" / f"{name}.json").read_text())


def step(tree: Any, wanted: str, key: str) -> Any:
    if not wanted:
        return tree[int(key)] if isinstance(tree, list) else tree.get(key)
    pairs = [pair.split("=") for pair in wanted.split(",")]
    fits = (all(json.dumps(item[key]).strip('"') == value for key, value in pairs) for item in tree)
    return next((item for item, fit in zip(tree, fits, strict=True) if fit), None)


def write_value(match: re.Match[str]) -> str:
    value = content(match[1])
    for wanted, key in re.findall(r"\[(.*?)\]|([^.\[\]]+)", match[2]):
        value = None if value is None else step(value, wanted, key)
    if value is None or (match[3] == "claim" and value["holds"] is None):
        return "-"
    return FORMATS.get(match[3], lambda number: format(number, match[3] or ""))(value)


def write_table(described: dict[str, Any], match: re.Match[str]) -> str:
    columns = described[match[2]]["columns"]
    heading = "| " + " | ".join(columns) + " |\n"
    alignment = "|:--" + "|--:" * (len(columns) - 1) + "|\n"
    lines = []
    for row in described[match[2]]["rows"]:
        filled = [
            re.sub(r"\$(\d)", lambda part, row=row: row[int(part[1])], c) for c in columns.values()
        ]
        cells = [VALUE.sub(write_value, cell) for cell in filled]
        lines.append("| " + " | ".join(cells) + " |\n")
    table = heading + alignment + "".join(lines)
    return f"{match[1]}\n{table}\n{match[3]}"


def description(page: Path, folder: Path) -> dict[str, Any]:
    """The tables of a page by name: described/results-table1.toml for docs/results/table1.md."""
    inside = page.is_relative_to(ROOT / "docs")
    parts = page.relative_to(ROOT / "docs").parts if inside else (page.name,)
    file = folder / "-".join(parts).replace(".md", ".toml")
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def filled(page: Path, folder: Path = DESCRIBED) -> str:
    """A page with the tables of today's JSON."""
    write = functools.partial(write_table, description(page, folder))
    return TABLE.sub(write, page.read_text(encoding="utf-8"))


def tables_of(text: str) -> str:
    """The lines of the tables that are written from JSON."""
    lines = "\n".join(match[0] for match in TABLE.finditer(text)).splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def main(check: bool, pages: list[Path] = PAGES, folder: Path = DESCRIBED) -> int:
    problems = []
    measured = "".join(filled(page) for page in RESULTS)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        new = filled(page, folder)
        tables = tables_of(new) if page in RESULTS else tables_of(new + measured)
        cited = re.findall(r"(?<![\d.])\d+\.\d(?=%)", CODE.sub("", TABLE.sub("", text)))
        unknown = [figure for figure in cited if figure not in tables]
        if unknown:
            problems.append(f"{page.name} cites {', '.join(unknown)}, which no table has")
        unused = description(page, folder).keys() - {match[2] for match in TABLE.finditer(text)}
        if unused:
            problems.append(f"{page.name} has no table {', '.join(sorted(unused))}")
        if check and new != text:
            problems.append(f"{page.name} has a table that is not its JSON's: run `make results`")
        if not check:
            page.write_text(new, encoding="utf-8")
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
