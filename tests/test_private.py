"""What begins with an underscore is nobody's business outside of its room."""

import ast
from collections import defaultdict
from pathlib import Path

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


def test_no_room_uses_another_rooms_private_names() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}
    own: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        own[path.relative_to(ROOT).parts[0]] |= defined(tree)
    all_of, used = set().union(*own.values()), []
    for path, tree in trees.items():
        others = all_of - own[path.relative_to(ROOT).parts[0]]
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            if private(name) and name in others:
                used.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    assert not used
