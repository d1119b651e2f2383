"""`orderless doctor`: check the installed packages and the device."""

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

import typer

from .. import __version__

# a requirement such as `rich>=13; extra == "cli"`
REQUIREMENT = re.compile(r"([\w.-]+)(?:>=([\d.]+))?[^;]*(?:;.*extra == ['\"](\w+)['\"])?")
FOR_DEVELOPERS = ("dev", "docs", "all")


def doctor() -> None:
    """Check the installed packages and the device.

    Example: orderless doctor
    """
    findings = [*examine(), device()]
    for status, what, text in findings:
        typer.echo(f"{status:8} {what:22} {text}")
    if any(status == "broken" for status, _, _ in findings):
        raise typer.Exit(1)


def examine() -> Iterator[tuple[str, str, str]]:
    """(status, what, text) of every package; the status is ok, missing (of an extra) or broken."""
    yield "ok", "orderless", f"{__version__}, Python {platform.python_version()}"
    for requirement in requires("orderless") or []:
        name, least, extra = REQUIREMENT.match(requirement).groups()  # type: ignore[union-attr]
        if extra in FOR_DEVELOPERS:
            continue
        what = f"{name} [{extra}]" if extra else name
        try:
            number = version(name)
        except PackageNotFoundError:
            package = f"'orderless[{extra}]'" if extra else name
            yield "missing" if extra else "broken", what, f"not installed: pip install {package}"
            continue
        if least and numbers(number) < numbers(least):
            yield "broken", what, f"{number}; needs {least} or newer: pip install -U {name}"
        else:
            yield "ok", what, number


def numbers(text: str) -> list[int]:
    """A version as numbers, to be compared."""
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
