"""What the pages show works: Python and `bash` run, commands in a `console` exist, links lead
somewhere, and the pages are short enough to be read. Titles of blocks say what is not run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import typer

from orderless.audit.measure import order_sensitivity
from orderless.cli.main import app
from orderless_lab.methods.registry import METHODS, SUPERVISED
from orderless_lab.report.columns import NUMBERS
from orderless_lab.suites import SUITES, find_suite

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NEEDS = 'title="needs a '  # GPU, download: readers see it, too
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, what else stands in the fence's line, where, and the text."""

    language: str
    options: str
    line: int
    text: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = list(re.finditer(r"^```(\w*)([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert 2 * len(found) == len(re.findall(r"^\s*```", text, re.MULTILINE)), f"{page}: odd fences"
    return [Block(m[1], m[2].strip(), text.count("\n", 0, m.start(3)), m[3]) for m in found]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def has_code(page: Path) -> bool:
    return any(block.language in ("python", "bash") for block in blocks_of(page))


@pytest.fixture
def registries() -> Iterator[None]:
    """What a page registers is gone after it."""
    family = SUPERVISED.copy()
    tables: list[dict[str, Any]] = [METHODS, SUITES, NUMBERS]
    before = [(table, table.copy()) for table in tables]
    yield
    SUPERVISED[:] = family
    for table, entries in before:
        table.clear()
        table.update(entries)


@pytest.mark.slow
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", [page for page in PAGES if has_code(page)], ids=name_of)
def test_the_code_on_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # an audit that names neither has 3 orders and 2 seeds here, not 10 and 3
    fewer = {**order_sensitivity.__kwdefaults__, "orders": 3, "seeds": 2}
    monkeypatch.setattr(order_sensitivity, "__kwdefaults__", fewer)
    torch.manual_seed(0)
    module = ModuleType("page")  # dataclasses look up the module they are made in
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks_of(page):
        if block.language == "bash":
            for command in commands_in(block.text):
                words = shlex.split(command)[1:]
                assert not typer.main.get_command(app)(words, standalone_mode=False), command
        if block.language != "python":
            continue
        # empty lines before it, so that an error names the page's own line
        code = compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True)
        if NEEDS not in block.options or (torch.cuda.is_available() and "GPU" in block.options):
            exec(code, vars(module))


def commands_of(page: Path) -> list[str]:
    """`orderless ...` in blocks, and in running text where it has options."""
    texts = [block.text for block in blocks_of(page) if block.language != "python"]
    texts += re.findall(r"`(orderless [^`\n]* --[^`\n]*)`", page.read_text())
    return [command for text in texts for command in commands_in(text)]


def commands_in(text: str) -> list[str]:
    lines = [line.removeprefix("$ ") for line in text.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in line.split(" #")[0].split("&&")]
    return [part for part in parts if part.startswith("orderless ")]


COMMANDS = [(name_of(page), command) for page in PAGES for command in commands_of(page)]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_on_a_page_can_be_given(page: str, command: str) -> None:
    parsed = parse(command)
    if str(parsed.get("benchmark")).startswith("split") and not parsed.get("plugin"):
        suite = find_suite(parsed["benchmark"])
        suite.preset(parsed["preset"]).settings.with_text(list(parsed["changes"] or ()))
        methods = (parsed.get("methods") or parsed.get("method") or "gd").split(",")
        assert set(methods) <= {*METHODS, "all"}


def parse(command: str) -> dict[str, Any]:
    """The values that typer's own parser reads off a command; nothing is run."""
    _, *words = shlex.split(command)
    parser: Any = typer.main.get_command(app)
    while words and words[0] in getattr(parser, "commands", {}):
        parser = parser.commands[words.pop(0)]
    assert not getattr(parser, "commands", {}), f"{command}: no such command"
    return parser.make_context(command, words).params


@pytest.mark.parametrize("command", ["orderless runs splitmnist", "orderless report --nothing x"])
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    with pytest.raises(Exception, match="(?i)no such (command|option)"):
        parse(command)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_scripts_and_make_targets_on_the_page_exist(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = page.read_text()
    for script in re.findall(r"(?<![\w/])(?:examples|benchmarks|tests|lab)/[\w/]+\.py", text):
        assert (ROOT / script).exists(), script
    for target in re.findall(r"^\$ make (\S+)|`make (\S+?)`", text, re.MULTILINE):
        assert "".join(target) in targets, target
    for target in re.findall(r"\]\((?!http)([^)#]+)", COMMENT.sub("", text)):
        assert (page.parent / target).exists(), target


def words_of(*pages: Path) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def test_the_readme_and_the_pages_are_short_enough_to_be_read() -> None:
    assert words_of(ROOT / "README.md") <= 700
    assert words_of(ROOT / "CHANGELOG.md") <= 700
    assert words_of(*(ROOT / "docs").rglob("*.md")) <= 28_000
    assert words_of(*(ROOT / "docs/results").glob("*.md")) <= 6_000
