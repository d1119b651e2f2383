"""What is imported when: names on first use, no torch before it is needed."""

import ast
import compileall
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import orderless

ROOT = Path(orderless.__file__).parent
NAMES = {*orderless._HOMES, *orderless._ROOMS}


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


def test_all_of_the_library_is_small_and_needs_no_command() -> None:
    loaded = loaded_after(f"import orderless as ol\nfor name in {list(NAMES)}: getattr(ol, name)")
    ours = {name for name in loaded if name.split(".")[0] == "orderless"}
    assert "orderless.filters.gradient" in ours
    assert len(ours) <= 60, sorted(ours)
    assert "orderless.cli" not in ours


WITHOUT_EXTRAS = """
import torch, torch.nn.functional as F, orderless as ol
particles = ol.Ensemble(lambda: torch.nn.Linear(3, 2), n=4, seed=0)
pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
x, y, loss = torch.ones(5, 3), torch.zeros(5, dtype=torch.long), ol.per_particle(F.cross_entropy)
pf.compile(lambda x, y: loss(particles(x), y))(x, y)
try:
    ol.ExactClassifier
except ImportError as error:
    assert "pip install" in str(error)
else:
    raise AssertionError("scikit-learn was not out of reach")
"""


def test_the_library_works_where_no_extra_is_installed() -> None:
    extras = ["typer", "rich", "pandas", "PIL", "sklearn", "scipy", "ray", "triton", "river"]
    hidden = f"import sys; sys.modules.update(dict.fromkeys({extras}))"  # cannot be imported
    loaded_after(hidden + WITHOUT_EXTRAS)


def test_every_public_name_resolves_and_there_are_no_others() -> None:
    for name in NAMES:
        assert getattr(orderless, name) is not None
    assert {name for name in dir(orderless) if not name.startswith("_")} == NAMES
    assert set(orderless.__all__) <= {*NAMES, "__version__"}
    with pytest.raises(AttributeError, match="module 'orderless' has no attribute 'Particles'"):
        orderless.Particles  # noqa: B018


def test_a_type_checker_reads_the_names_of_the_table() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    read = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        read |= {alias.asname: node.module for alias in node.names}
    assert read == {**dict.fromkeys(orderless._ROOMS), **orderless._HOMES}


def test_compiled_files_alone_are_enough(tmp_path: Path) -> None:
    """As in a frozen application."""
    shutil.copytree(ROOT, tmp_path / "orderless", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(tmp_path, quiet=2, legacy=True)
    for path in (tmp_path / "orderless").rglob("*.py"):
        path.unlink()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import orderless as ol; "
    code += "print(ol.__file__, ol.features.RandomReLU, ol.Ensemble, ol.metrics)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.startswith(str(tmp_path)), result.stderr


# ---------------------------------------------------------------------- the command line


def test_help_imports_no_torch() -> None:
    code = """
import sys
from orderless.cli import app
for command in ("--help", "--version", "fit --help"):
    sys.argv[1:] = command.split()
    try:
        app()
    except SystemExit as end:
        assert not end.code, (command, end.code)
"""
    loaded = loaded_after(code)
    assert "typer" in loaded and not {"torch", "numpy", "matplotlib"} & loaded


def test_without_its_extra_the_command_says_which_one_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from orderless.cli import app; app()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == (
        "orderless: the command line needs typer: run pip install 'orderless[cli]'\n"
    )
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["orderless"] == "orderless.cli:app"
