"""`orderless doctor`: check the installed packages and the device."""

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal, NamedTuple

import typer

from .. import __version__

Status = Literal["ok", "missing", "broken"]
COLOURS = {"ok": "green", "missing": "yellow", "broken": "bold red"}
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)[^;]*?(>=(?P<least>[\d.]+))?[^;>]*(;(?P<marker>.*))?$")


def doctor() -> None:
    """Check the installed packages and the device.

    Example: orderless doctor
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    findings = list(examine())
    if not console.is_terminal:
        console.width = 1000  # one line each, for other programs
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        status = Text(finding.status, style=COLOURS[finding.status])
        table.add_row(status, Text(finding.what), Text(finding.text))
    console.print(table)
    if any(finding.needed and finding.status == "broken" for finding in findings):
        raise typer.Exit(1)


class Finding(NamedTuple):
    """One row of the table; the command fails if something `needed` is broken."""

    what: str
    status: Status
    text: str
    needed: bool = False


class Requirement(NamedTuple):
    """A package, its oldest version ("" for any) and the extra that asks for it ("" for none)."""

    name: str
    least: str
    extra: str


def examine() -> Iterator[Finding]:
    """Check everything."""
    yield Finding("orderless", "ok", f"{__version__}, Python {platform.python_version()}")
    requirements = list(declared())
    for requirement in requirements:
        if not requirement.extra:
            yield _package(requirement)
    for extra in dict.fromkeys(each.extra for each in requirements if each.extra):
        yield _extra(extra, [each for each in requirements if each.extra == extra])
    yield _device()


def declared() -> Iterator[Requirement]:
    """What the installed distribution says that it needs, without what is for its developers."""
    for text in requires("orderless") or []:
        found = REQUIREMENT.match(text)
        assert found is not None, text
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", found["marker"] or "")
        name = extra[1] if extra else ""
        if found["name"] != "orderless" and name not in ("dev", "docs", "all"):
            yield Requirement(found["name"], found["least"] or "", name)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_older(found: str, least: str) -> bool:
    numbers = [[int(part) for part in re.findall(r"\d+", text)] for text in (found, least)]
    return numbers[0] < numbers[1]


def _package(requirement: Requirement) -> Finding:
    name, least, _ = requirement
    found = _installed(name)
    if found is None or _is_older(found, least):
        text = f"{found or 'not installed'}; needs {least} or newer: pip install -U {name}"
        return Finding(name, "broken", text, needed=True)
    return Finding(name, "ok", found, needed=True)


def _extra(extra: str, packages: list[Requirement]) -> Finding:
    found = {each.name: _installed(each.name) for each in packages}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        text = f"{', '.join(missing)} not installed: pip install 'orderless[{extra}]'"
        return Finding(f"[{extra}]", "missing", text)
    text = ", ".join(f"{name} {number}" for name, number in found.items())
    return Finding(f"[{extra}]", "ok", text)


def _device() -> Finding:
    import torch

    if not torch.cuda.is_available():
        text = f"CPU ({platform.machine()}), {torch.get_num_threads()} threads; no CUDA GPU found"
        return Finding("device", "ok", text)
    try:
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        torch.ones(2, device="cuda").sum().item()
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Finding("device", "broken", f"a GPU that does not work ({reason}): use the CPU")
    text = f"{name}, {total / 2**30:.0f} GiB, {free / 2**30:.0f} GiB free"
    return Finding("device", "ok", text)
