"""The page of learners on frozen features that ought to have no order."""

import json
from pathlib import Path

from docs.tools.sections import PROSE, page

from orderless.writing import markdown_table

NAME = "order-free"
HEADINGS = ["method", "accuracy, %", "order variance", "labels flipped", "bits", "deletion"]
HEADINGS += ["merging", "seconds per order"]
NAMES = {"cifar100": "CIFAR-100", "banking77": "Banking77", "clinc150": "CLINC150"}


def order_free_page(directory: Path) -> str | None:
    """From `order-free-*.json`, as benchmarks/order_free.py writes them; None without one."""
    words, parts = PROSE["order_free"]["words"], []
    for path in sorted(directory.glob(f"{NAME}-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            [
                row["method"],
                f"{row['accuracy']:.2f}",
                f"{row['order_variance']:.1e}" if row["order_variance"] else "0",
                f"{row['flipped']} of {found['tests']}",
                "equal" if row["equal_bits"] else "differ",
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
    return page("Learners without an order, side by side", words, *parts) if parts else None
