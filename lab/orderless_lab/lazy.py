"""Lazy imports of a package's names (PEP 562).

A package imports its names under `if TYPE_CHECKING:`. Type checkers, editors and `on_first_use`
read that block, so that each name is written once.
"""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def on_first_use(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, which import its names on first use."""

    @cache
    def homes() -> dict[str, str]:
        """The module that defines each name; empty if the name is a module itself."""
        source = sys.modules[package].__spec__.loader.get_source(package)  # type: ignore[union-attr]
        return {
            alias.name: "." * node.level + (node.module or "")
            for block in ast.parse(source).body
            if isinstance(block, ast.If)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def resolve(name: str) -> Any:
        if name.startswith("_") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes()[name]
        if home == ".":
            value: Any = import_module(f"{package}.{name}")
        else:
            value = getattr(import_module(home, package), name)
        setattr(sys.modules[package], name, value)  # the next use finds the attribute
        return value

    def names() -> list[str]:
        hidden = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted({*homes(), *hidden})

    return resolve, names
