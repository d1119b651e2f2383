"""What every study writes beside its numbers: command, machine, versions, commit."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

import orderless


def facts(device: str = "cpu") -> dict[str, Any]:
    """How the numbers were made; paths in the command lose their folders."""
    machine = f"{os.cpu_count()} cores of an {platform.machine().replace('_', '-')} server"
    if device != "cpu":
        machine = torch.cuda.get_device_name(device)
    arguments = [Path(a).name if a.startswith("/") else a for a in sys.argv[1:]]
    return {
        "command": " ".join(["python", f"lab/studies/{Path(sys.argv[0]).name}", *arguments]),
        "machine": machine,
        "threads": torch.get_num_threads(),
        "versions": {
            "orderless": orderless.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "commit": _commit(),
    }


def write(path: Path | None, results: dict[str, Any], device: str = "cpu") -> None:
    """Write the results and their facts as JSON; without a path, do nothing."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts(device), **results}, indent=1) + "\n")


def _commit() -> str:
    """The commit of the library that was imported."""
    folder = Path(orderless.__file__).parent
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
