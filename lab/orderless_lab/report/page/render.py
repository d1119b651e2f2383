"""Rendering of data, charts, style sheet and scripts into one file.

Names that users choose (methods, tasks, directories, commands) enter the page in two ways only: in
a JSON block in which no character can end the block, and which the script shows by `textContent`;
or as text and attributes of an SVG, escaped by the XML writer. The content security policy admits
the style sheet and the script of this package, by their hashes, and no network requests.
"""

import base64
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path

from orderless.io import write_atomically
from orderless_lab.storage.typed import Json, as_json

from .data import Page

SCRIPTS = ("elements", "charts", "table", "matrices", "density", "facts", "main")


def write_page(page: Page, folder: Path) -> Path:
    """Write `folder/report.html`; returns its path."""
    path = folder / "report.html"
    write_atomically(path, render(page).encode())
    return path


def render(page: Page) -> str:
    """The page as text."""
    assets = files(__package__) / "assets"
    style = (assets / "page.css").read_text(encoding="utf-8")
    parts = [(assets / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"
    data = {"directory": page.directory, "results": page.results, "problems": page.problems}
    values = {
        "style": style,
        "style_digest": _digest(style),
        "script": script,
        "script_digest": _digest(script),
        "data": as_script_data(as_json(data)),
        "charts": "\n".join(
            f'<template id="chart-{number}-{name}">{svg}</template>'
            for number, charts in enumerate(page.charts)
            for name, svg in charts.items()
        ),
    }
    template = (assets / "page.html").read_text(encoding="utf-8")
    # One pass over the template, so that braces in the data are not taken for placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def as_script_data(data: Json) -> str:
    """JSON that is safe inside a script element, whatever strings it contains.

    `ensure_ascii` escapes U+2028, U+2029 and lone surrogates. `<`, `>` and `&` could end the
    element or begin a comment or an entity.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
