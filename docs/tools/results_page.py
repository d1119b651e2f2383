"""The result pages of the documentation, written from the JSON of finished reports alone.

``python -m docs.tools.results_page`` writes the `PAGES` whose JSON is in ``docs/results`` and
removes those whose JSON is not; with ``--check`` it writes nothing and exits 1 if a page differs
from the JSON. A page also includes the ``*.remarks.txt`` of its name: explanations of figures,
which cannot be computed.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from docs.tools.equality_page import equality_page
from docs.tools.exact_page import exact_page
from docs.tools.literature import literature_page
from docs.tools.order_free_page import order_free_page
from docs.tools.product_page import product_page
from docs.tools.sections import COMMAND, Results, Source
from docs.tools.table1_page import table1_details, table1_page
from docs.tools.table2_page import table2_details, table2_page

from orderless_lab.report import Summary
from orderless_lab.report.paper import TABLE_1, TABLE_2
from orderless_lab.storage.typed import decode

PAGES: dict[str, Callable[[Results], str | None]] = {
    "table1": table1_page,
    "table1-details": table1_details,
    "table2": table2_page,
    "table2-details": table2_details,
    "literature": literature_page,
    "exact-filter": exact_page,
    "product": product_page,
    "order-free": order_free_page,
    "equality": equality_page,
}


def read_results(directory: Path) -> Results:
    """All summaries in ``directory/*.json``; JSON files of other kinds are passed over."""
    sources = []
    places = [*TABLE_1, *TABLE_2]
    for path in sorted(directory.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for found in content if isinstance(content, list) else [content]:
            if isinstance(found, dict) and {"benchmark", "methods", "claims"} <= found.keys():
                source = Source(path, decode(Summary, found))
                sources += [source] if source.summary.benchmark in places else []
    sources.sort(key=lambda s: (places.index(s.summary.benchmark), s.path.stem, s.summary.scenario))
    return Results(directory, sources)


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or with ``--check`` compare them; returns the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write the result pages from JSON.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    parser.add_argument("--directory", type=Path, default=Path("docs/results"))
    options = parser.parse_args(arguments)
    try:
        results = read_results(options.directory)
        pages = {name: render(results) for name, render in PAGES.items()}
    except (OSError, ValueError, KeyError) as error:
        print(f"The results in {options.directory} cannot be read: {error}.", file=sys.stderr)
        return 2
    status = 0
    for name, text in pages.items():
        path = options.directory / f"{name}.md"
        found = path.read_text(encoding="utf-8") if path.exists() else None
        if text == found:
            continue
        if options.check:
            print(f"{path} differs from the JSON beside it; run `{COMMAND}`.", file=sys.stderr)
            status = 1
        elif text is not None:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
        else:
            path.unlink()
            print(f"removed {path}: its JSON is missing")
    return status


if __name__ == "__main__":
    sys.exit(main())
