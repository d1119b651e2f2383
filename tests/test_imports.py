"""What is imported when: names on first use, no torch before it is needed, no room from below."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import orderless

ROOT = Path(orderless.__file__).parent
MODULES = {
    ".".join(("orderless", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in ROOT.rglob("*.py")
    if path.name != "__init__.py"  # a package's front collects what its modules make
}


def loaded_after(code: str) -> set[str]:
    """The modules in a new process after some code."""
    program = f"{code}\nimport sys; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


# ---------------------------------------------------------------------- names on first use


def test_the_package_alone_imports_no_torch() -> None:
    loaded = loaded_after("import orderless; orderless.__version__; dir(orderless)")
    assert "orderless" in loaded and not {"torch", "numpy"} & loaded


def test_all_of_the_library_is_small_and_needs_nothing_of_the_harness() -> None:
    later = {"audit", "distributed", "theory", "estimators", "order_sensitivity"}
    names = [name for name in orderless.__all__ if name not in later]
    loaded = loaded_after(f"import orderless as ol\nfor name in {names}: getattr(ol, name)")
    ours = {name for name in loaded if name.split(".")[0] == "orderless"}
    assert "orderless.filters.weighted" in ours
    assert len(ours) <= 75, sorted(ours)
    rooms = {name.split(".")[1] for name in ours - {"orderless"}}
    assert not rooms & {"rl", "experiments", "report", "methods", "cli", "audit", "theory"}


def test_every_public_name_resolves_and_there_are_no_others() -> None:
    optional = {"ParticleClassifier", "ParticleRegressor", "estimators"}
    for name in [*orderless.__all__, *optional]:
        assert getattr(orderless, name) is not None and name in dir(orderless)
    public = {name for name in dir(orderless) if not name.startswith("_")}
    assert public - set(orderless.__all__) == optional
    rooms = {path.stem for path in ROOT.iterdir()}
    assert {name for name in vars(orderless) if not name.startswith("_")} <= public | rooms
    with pytest.raises(AttributeError, match="module 'orderless' has no attribute 'Particles'"):
        orderless.Particles  # noqa: B018


def test_what_a_package_exports_is_what_its_modules_are_asked_for() -> None:
    """`__all__` and the block that a type checker reads name the same."""
    for path in ROOT.rglob("__init__.py"):
        if "on_first_use(__name__)" in path.read_text():
            module = sys.modules[".".join(("orderless", *path.parent.relative_to(ROOT).parts))]
            assert set(module.__all__) <= set(dir(module))
            for name in module.__all__:
                assert getattr(module, name) is not None


# ---------------------------------------------------------------------- the command line


def test_no_name_is_hidden_by_a_module_that_was_imported_first() -> None:
    """Python binds a module to its name in the package, where a name of first use would be."""
    for package in {path.parent for path in MODULES.values()}:
        front = (package / "__init__.py").read_text()
        names = {
            alias.name
            for node in ast.walk(ast.parse(front))
            if isinstance(node, ast.ImportFrom) and node.module and "on_first_use" in front
            for alias in node.names
        }
        assert not names & {path.stem for path in package.iterdir()}, package


def test_help_imports_no_torch() -> None:
    code = """
import sys
from orderless.cli import app
for command in ("--help", "--version", "run --help", "expert train --help"):
    sys.argv[1:] = command.split()
    try:
        app()
    except SystemExit as end:
        assert not end.code, (command, end.code)
"""
    loaded = loaded_after(code)
    assert "typer" in loaded and not {"torch", "numpy", "matplotlib"} & loaded


def test_the_shell_is_answered_without_torch() -> None:
    code = """
import os
from orderless.cli import app
os.environ["_ORDERLESS_COMPLETE"] = "complete_bash"
for line in ("run spl", "run splitmnist --preset d", "run splitmnist --set l", "data fetch m"):
    words = f"orderless {line}"
    os.environ.update(COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
    try:
        app()
    except SystemExit as end:
        assert not end.code, (line, end.code)
        print()
    else:
        raise AssertionError(line)
"""
    loaded = loaded_after(code)
    assert "typer" in loaded and "torch" not in loaded


def test_without_its_extra_the_command_says_which_one_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from orderless.cli import app; app()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == (
        "orderless: the command line needs typer: run pip install 'orderless[cli]'\n"
    )
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["orderless"] == "orderless.cli:app"


# ---------------------------------------------------------------------- rooms


class WithoutTypes(ast.NodeTransformer):
    """What is imported for a type checker alone is never run."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


@cache
def imported(module: str, path: Path) -> list[str]:
    tree = WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            package = ".".join([*above, *filter(None, [node.module])])
            names += [package, *(f"{package}.{alias.name}" for alias in node.names)]
    return names


def test_modules_can_be_read_one_after_another() -> None:
    graph = {
        module: {name for name in imported(module, path) if name in MODULES}
        for module, path in MODULES.items()
    }
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    place = order.index
    assert place("orderless.filters.step") < place("orderless.filters.weighted")


def test_a_room_imports_only_from_rooms_above_it() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = text.split("## Rooms")[1].split("```")[1]
    rooms = [
        line.split()[0].removesuffix("/").removesuffix(".py") for line in block.split("\n")[1:-1]
    ]
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {
        room for room in rooms if (ROOT / room).is_dir()
    }
    for module, path in MODULES.items():
        here = module.split(".")[1]
        for name in imported(module, path):
            there = name.removeprefix("orderless.").split(".")[0]
            if name.startswith("orderless.") and here in rooms and there in rooms:
                assert rooms.index(there) <= rooms.index(here), f"{module} imports {name}"
