"""No module imports one that imports it, not even late, and no room one below it."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import orderless

ROOT = Path(orderless.__file__).parent
MODULES = {
    ".".join(("orderless", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in ROOT.rglob("*.py")
    if path.name != "__init__.py"  # a package's front collects what its modules make
}


class WithoutTypes(ast.NodeTransformer):
    """What is imported for a type checker alone is never run."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def imported(module: str, path: Path) -> Iterator[str]:
    tree = WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            package = ".".join([*above, *filter(None, [node.module])])
            yield from (package, *(f"{package}.{alias.name}" for alias in node.names))


def test_modules_can_be_read_one_after_another() -> None:
    graph = {
        module: {name for name in imported(module, path) if name in MODULES}
        for module, path in MODULES.items()
    }
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    place = order.index
    assert place("orderless.filters.step") < place("orderless.filters.weighted")
    assert place("orderless.particles.ensemble") < place("orderless.cli.main")


def test_a_room_imports_only_from_rooms_above_it() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.split("## Rooms")[1].split("```")[1]
    rooms = [word.removesuffix("/").removesuffix(".py") for word in block.split()]
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= set(rooms)
    for module, path in MODULES.items():
        here = module.split(".")[1]
        for name in imported(module, path):
            there = name.removeprefix("orderless.").split(".")[0]
            if name.startswith("orderless.") and here in rooms and there in rooms:
                assert rooms.index(there) <= rooms.index(here), f"{module} imports {name}"
