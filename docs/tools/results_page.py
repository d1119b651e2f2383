"""The result pages of the documentation, written from the JSON of finished reports and from
nothing else.

``python -m docs.tools.results_page`` writes ``docs/results/table1.md`` and ``table1-details.md``
(and ``table2.md`` where reports of the ProcGen benchmarks are there, ``literature.md`` where one of
the preset ``strong`` is, ``exact-filter.md`` where one holds `rb` alone, ``product.md`` where files
are named ``product-*.json``, ``when-weighting-helps.md`` where the map of ``orderless run regime``
lies beside it, ``order-free.md`` from ``order-free-*.json`` and ``equality.md`` from
``equality.json``) from ``docs/results/*.json``; with ``--check`` it writes nothing and exits 1 when
a page differs from what the JSON says.
``table1.remarks.txt`` and the like beside the JSON, if they exist, are printed in the pages: why a
figure is what it is cannot be computed.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from docs.tools import equality_page, order_free_page, regime_page
from docs.tools.exact_page import exact_page
from docs.tools.literature import literature_page
from docs.tools.product_page import product_page
from docs.tools.sections import COMMAND, Source
from docs.tools.table1_page import table1_details, table1_page
from docs.tools.table2_page import table2_page

from orderless.report import Summary
from orderless.report.paper import TABLE_1, TABLE_2
from orderless.storage.typed import decode


def read_sources(directory: Path) -> list[Source]:
    """All summaries in ``directory/*.json``; JSON files of other kinds are passed over."""
    sources = []
    for path in sorted(directory.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for found in content if isinstance(content, list) else [content]:
            if isinstance(found, dict) and {"benchmark", "methods", "claims"} <= found.keys():
                sources.append(Source(path, decode(Summary, found)))
    places = [*TABLE_1, *TABLE_2]
    return sorted(
        (source for source in sources if source.summary.benchmark in places),
        key=lambda s: (places.index(s.summary.benchmark), s.path.stem, s.summary.scenario),
    )


PAGES: dict[str, Callable[[list[Source]], str | None]] = {
    "table1.md": table1_page,
    "table1-details.md": table1_details,
    "table2.md": table2_page,
    "literature.md": literature_page,
    "exact-filter.md": exact_page,
    "product.md": product_page,
}


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or with ``--check`` compare them; the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write the result pages from JSON.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    parser.add_argument("--directory", type=Path, default=Path("docs/results"))
    options = parser.parse_args(arguments)
    try:
        sources = read_sources(options.directory)
        pages = {name: render(sources) for name, render in PAGES.items()}
        pages[f"{regime_page.NAME}.md"] = regime_page.regime_page(options.directory)
        pages[f"{order_free_page.NAME}.md"] = order_free_page.order_free_page(options.directory)
        pages[f"{equality_page.NAME}.md"] = equality_page.equality_page(options.directory)
    except (OSError, ValueError, KeyError) as error:
        print(f"The results in {options.directory} cannot be read: {error}.", file=sys.stderr)
        return 2
    status = 0
    for name, text in pages.items():
        path = options.directory / name
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
            print(f"removed {path}: no JSON stands behind it")
    return status


if __name__ == "__main__":
    sys.exit(main())
