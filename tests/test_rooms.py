"""Who imports from whom: rooms from rooms above, the library nothing of the lab, scripts what is
there, and nobody what begins with an underscore. (Private attributes of what the lab and scripts
hold are found by `ruff`.)"""

import ast
import importlib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import torch

import orderless

ROOT = Path(orderless.__file__).parent
HOME = Path(__file__).parents[1]
MODULES = {
    ".".join(("orderless", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in ROOT.rglob("*.py")
    if path.name != "__init__.py"  # a package's front collects what its modules make
}


class WithoutTypes(ast.NodeTransformer):
    """What is imported for a type checker alone is never run."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


@cache
def tree_of(path: Path) -> ast.Module:
    return WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))


def imported(path: Path, module: str = "") -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name`, and (module, "") of every other import."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            package = ".".join([*above, *filter(None, [node.module])])
            yield from ((package, alias.name) for alias in node.names)


def modules_of(module: str) -> set[str]:
    """All that a module of the library may import by its imports."""
    pairs = list(imported(MODULES[module], module))
    return {package for package, _ in pairs} | {f"{package}.{name}" for package, name in pairs}


# ---------------------------------------------------------------------- rooms of the library


def test_modules_can_be_read_one_after_another():
    graph = {module: modules_of(module) & MODULES.keys() for module in MODULES}
    assert list(TopologicalSorter(graph).static_order())  # or it raises CycleError


def test_a_room_imports_only_from_rooms_above_it():
    text = (HOME / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.split("## Two houses")[1].split("```")[1]
    rooms = [
        line.split()[0].removesuffix("/").removesuffix(".py") for line in block.split("\n")[1:-1]
    ]
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {
        room for room in rooms if (ROOT / room).is_dir()
    }
    for module in MODULES:
        here = module.split(".")[1]
        for name in modules_of(module):
            there = name.removeprefix("orderless.").split(".")[0]
            if name.startswith("orderless.") and here in rooms and there in rooms:
                assert rooms.index(there) <= rooms.index(here), f"{module} imports {name}"


def test_the_library_does_not_know_the_lab():
    paths = ROOT.rglob("*.py")
    assert [path for path in paths if "orderless_lab" in path.read_text(encoding="utf-8")] == []


# names that objects of torch and named tuples have, too
TORCH = {*dir(torch.nn.Module()), *dir(torch.Tensor), *dir(torch.optim.Optimizer), "_replace"}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in TORCH


def defined(path: Path) -> set[str]:
    """Private names that a module defines: functions, methods, classes, attributes it sets."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # register_buffer("_draws", ...)
    return set(filter(private, names))


def test_no_room_uses_another_rooms_private_names():
    own = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        own[path.relative_to(ROOT).parts[0]] |= defined(path)
    used = []
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0]
        others = set().union(*own.values()) - own[room]
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr in others:
                used.append(f"{path}:{node.lineno} {node.attr}")
    assert not used


# ---------------------------------------------------------------------- the lab and scripts

FOLDERS = "lab/orderless_lab", "lab/studies", "examples", "benchmarks"
USERS = [path for folder in FOLDERS for path in sorted((HOME / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(HOME)))
def test_what_is_imported_of_the_library_is_public_and_there(path):
    """Also by scripts that no test runs, for want of time or a GPU."""
    for module, name in imported(path):
        if module.split(".")[0] == "orderless":
            assert not any(map(private, [*module.split("."), name])), (module, name)
        if module.startswith("orderless"):
            found = importlib.import_module(module)
            if name and not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")
