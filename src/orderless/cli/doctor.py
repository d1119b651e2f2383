"""`orderless doctor`: check the installed packages and the device."""

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import typer

from .. import __version__

# of a requirement such as `rich>=13; extra == "cli"`
NAME = re.compile(r"[\w.-]+")
LEAST = re.compile(r">=([\d.]+)")
EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
FOR_DEVELOPERS = ("dev", "docs", "all")


def doctor() -> None:
    """Check the installed packages and the device.

    Example: orderless doctor
    """
    broken = False
    for status, what, text in examine():
        typer.echo(f"{status:8} {what:12} {text}")
        broken = broken or status == "broken"
    if broken:
        raise typer.Exit(1)


def examine() -> Iterator[tuple[str, str, str]]:
    """(status, what, text) of everything; the status is ok, missing (an extra) or broken."""
    yield "ok", "orderless", f"{__version__}, Python {platform.python_version()}"
    extras: dict[str, list[str]] = {}
    for requirement in requires("orderless") or []:
        extra = EXTRA.search(requirement)
        if extra is None:
            yield package(requirement)
        elif extra[1] not in FOR_DEVELOPERS:
            extras.setdefault(extra[1], []).append(name_of(requirement))
    for extra_name, names in extras.items():
        missing = [name for name in names if not installed(name)]
        if missing:
            text = f"no {', '.join(missing)}: pip install 'orderless[{extra_name}]'"
            yield "missing", f"[{extra_name}]", text
        else:
            found = ", ".join(f"{name} {installed(name)}" for name in names)
            yield "ok", f"[{extra_name}]", found
    yield device()


def package(requirement: str) -> tuple[str, str, str]:
    """A package that the library needs."""
    name = name_of(requirement)
    least = LEAST.search(requirement)
    found = installed(name)
    if not found or (least is not None and numbers(found) < numbers(least[1])):
        wanted = f"{least[1]} or newer" if least else "any version"
        return "broken", name, f"{found or 'none'} found, needs {wanted}: pip install -U {name}"
    return "ok", name, found


def name_of(requirement: str) -> str:
    found = NAME.match(requirement)
    return found[0] if found else requirement


def installed(name: str) -> str:
    """The version of a distribution; empty if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


def device() -> tuple[str, str, str]:
    """What torch computes on."""
    import torch

    if not torch.cuda.is_available():
        return "ok", "device", f"CPU, {torch.get_num_threads()} threads; no CUDA GPU found"
    try:
        torch.ones(2, device="cuda").sum().item()
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
    except RuntimeError as error:
        return "broken", "device", f"a GPU that does not work: {str(error).splitlines()[0]}"
    return "ok", "device", f"{name}, {total / 2**30:.0f} GiB, {free / 2**30:.0f} GiB free"
