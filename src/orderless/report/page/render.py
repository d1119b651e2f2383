"""Puts data, style sheet and scripts into one file.

Whatever a user can name (methods, tasks, directories, commands) reaches the page as data only: a
JSON block in which no character can end the block, written into the document through
``textContent``. The content security policy admits exactly the style sheet and the script of this
package, by their hashes, and no network at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...storage import write_atomically
from ..cells import Cell, load_cells
from .data import page_data

SCRIPTS = (
    "elements.js",
    "charts.js",
    "table.js",
    "tasks.js",
    "scatter.js",
    "heatmap.js",
    "series.js",
    "density.js",
    "facts.js",
    "main.js",
)


def write_page(
    directory: Path,
    folder: Path,
    summaries: list[dict[str, Any]],
    read: Callable[[Path], Cell] | None = None,
) -> Path:
    """Write ``folder/report.html`` for the run directory; returns its path."""
    path = folder / "report.html"
    data = page_data(directory, summaries, load_cells(directory, read))
    write_atomically(path, render(data).encode())
    return path


def render(data: Any) -> str:
    """The page as text."""
    assets = files(__package__) / "assets"
    style = (assets / "page.css").read_text(encoding="utf-8")
    parts = [(assets / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"
    values = {
        "policy": _policy(script, style),
        "style": style,
        "script": script,
        "data": as_script_data(data),
    }
    template = (assets / "page.html").read_text(encoding="utf-8")
    # One pass over the template: braces inside the data are never taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def as_script_data(data: Any) -> str:
    """JSON that can stand inside a script element, whatever strings it holds.

    ``ensure_ascii`` takes care of U+2028, U+2029 and lone surrogates; the other three characters
    could end the element or begin a comment or an entity.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(script: str, style: str) -> str:
    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; "
        f"style-src 'sha256-{digest(style)}'; base-uri 'none'; form-action 'none'"
    )
