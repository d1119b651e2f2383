"""Scripts that no test runs, for want of time or a GPU, find what they import from the library."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "examples", "lab/studies")
SCRIPTS = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.py")]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from orderless... import name`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orderless"):
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_names_that_are_there(path: Path) -> None:
    for module, name in imported(path):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
