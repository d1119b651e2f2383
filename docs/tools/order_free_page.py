"""The page of learners on frozen features that ought to have no order."""

from __future__ import annotations

import json
from pathlib import Path

from docs.tools.sections import page

from orderless.report.tables import markdown_table

NAME = "order-free"
HEADINGS = ["method", "accuracy, %", "order variance", "labels flipped", "deletion", "merging"]
HEADINGS += ["seconds per order"]
NAMES = {"cifar100": "CIFAR-100", "banking77": "Banking77", "clinc150": "CLINC150"}
WORDS = (
    "Closed-form heads on the same frozen features, written from their formulas with the settings "
    "of their papers, and fed the classes task by task in three orders of the tasks. *Labels "
    "flipped* is the largest number of test samples that two orders answer differently. *Deletion* "
    "and *merging* are what the equations allow: *rounded* means up to floating-point error, "
    "*exact* to the bit. RanPAC, ACIL and the exact filter have the same random ReLU features."
)


def order_free_page(directory: Path) -> str | None:
    """From `order-free-*.json`, as benchmarks/order_free.py writes them; None without one."""
    parts = []
    for path in sorted(directory.glob(f"{NAME}-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            [
                row["method"],
                f"{row['accuracy']:.2f}",
                f"{row['order_variance']:.1e}" if row["order_variance"] else "0",
                f"{row['flipped']} of {found['tests']}",
                row["deletion"],
                row["merging"],
                f"{row['seconds']:.1f}",
            ]
            for row in found["rows"]
        ]
        command = f"python benchmarks/order_free.py --data {found['data']}"
        command += f" --features {found['features']} --fourier {found['fourier']}"
        where = f"On {found['device']}, torch {found['torch']}; data: [`{path.name}`]({path.name})."
        table = markdown_table(HEADINGS, rows)
        parts.append(f"## {NAMES[found['data']]}\n\n{table}\n```\n{command}\n```\n\n{where}\n")
    return page("Learners without an order, side by side", WORDS, *parts) if parts else None
