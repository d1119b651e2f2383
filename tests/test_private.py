"""What begins with an underscore is nobody's business outside of its room, and the library knows
nothing of the lab."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import orderless

# names that objects of torch and named tuples have, too
TORCH = {
    "_replace",
    "_asdict",
    *dir(torch.nn.Module()),
    *dir(torch.Tensor),
    *dir(torch.optim.Optimizer),
}
ROOT = Path(orderless.__file__).parent
HOME = Path(__file__).parents[1]
USERS = ("lab/orderless_lab", "lab/studies", "examples", "benchmarks")
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.AST) -> set[str]:
    """Private names that a module defines: functions, methods, classes, attributes it sets."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # register_buffer("_draws", ...)
    return {name for name in names if private(name)} - TORCH


OF_THE_LIBRARY = set().union(*map(defined, TREES.values()))


def test_no_room_uses_another_rooms_private_names() -> None:
    own: dict[str, set[str]] = defaultdict(set)
    for path, tree in TREES.items():
        own[path.relative_to(ROOT).parts[0]] |= defined(tree)
    used = []
    for path, tree in TREES.items():
        others = OF_THE_LIBRARY - own[path.relative_to(ROOT).parts[0]]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in others:
                used.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}")
    assert not used


def test_the_library_does_not_know_the_lab() -> None:
    assert [path for path in TREES if "orderless_lab" in path.read_text(encoding="utf-8")] == []


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name in the file, what it stands for) of everything that is imported of the library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def private_uses(tree: ast.AST) -> list[str]:
    """Private names of the library in a file of somebody else, in whatever form."""
    ours = [(name, of) for name, of in imported(tree) if of.split(".")[0] == "orderless"]
    used = [of for _, of in ours if any(map(private, of.split(".")))]
    names = {name for name, _ in ours}
    theirs = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            chain = ast.unparse(node)
            if chain.split(".")[0] in names or node.attr in OF_THE_LIBRARY - defined(tree) - theirs:
                used.append(chain)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            text = ast.unparse(node.args[1]).strip("'")
            used += [text] if text in OF_THE_LIBRARY else []
    return used


@pytest.mark.parametrize(
    "code",
    [
        "import orderless as ol; ol._HOMES",
        "import orderless; orderless.exact._anything",
        "import orderless.io as storage; storage._encode",
        "import orderless.filters._weights",
        "from orderless import io; io._encode",
        "from orderless import _HOMES as homes",
        "from orderless.io import _encode",
        "from orderless._private import anything",
        "import orderless as ol; getattr(ol.io, '_encode')",
        "import orderless as ol; ol.Head.load('x')._check_same(1)",
        "def later():\n    import orderless as ol\n    return ol.exact._anything",
    ],
)
def test_every_form_of_a_private_use_is_seen(code: str) -> None:
    assert private_uses(ast.parse(code))


def test_the_lab_and_all_scripts_use_public_names() -> None:
    paths = [path for folder in USERS for path in (HOME / folder).rglob("*.py")]
    assert len(paths) > 100
    uses = {path: private_uses(ast.parse(path.read_text(encoding="utf-8"))) for path in paths}
    assert {str(path): names for path, names in uses.items() if names} == {}
