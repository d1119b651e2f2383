"""Load envpool, which needs Qt: from pip's PyQt5-Qt5, or else from the system."""

import ctypes
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from orderless.errors import UserError
from orderless.io import package_files

_INSTALL = "pip install 'orderless-lab[procgen]'"


class ProcgenMissing(UserError, ImportError):
    """A requirement of ProcGen is not installed; the message names it and how to install it."""


def load_envpool() -> ModuleType:
    """Import `envpool`, after loading the Qt libraries that it links to."""
    if importlib.util.find_spec("envpool") is None:
        raise ProcgenMissing(f"ProcGen needs envpool, which is not installed: {_INSTALL}")
    try:
        for library in _qt_libraries():
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        return importlib.import_module("envpool")
    except (ImportError, OSError) as error:
        raise ProcgenMissing(_explain(str(error))) from error


def _qt_libraries() -> list[Path]:
    """pip's libQt5Core and libQt5Gui, in the order in which they must be loaded; or none."""
    found = [package_files("PyQt5", f"Qt5/lib/libQt5{name}.so.5") for name in ("Core", "Gui")]
    return [libraries[0] for libraries in found] if all(found) else []


def _explain(message: str) -> str:
    """An error message that names the missing library and how to install it."""
    if "libQt5" in message and "cannot open" in message:
        return f"ProcGen needs Qt 5, which was not found ({message}): {_INSTALL}"
    if any(name in message for name in ("libGL", "libglib", "libgthread")):
        return (
            f"ProcGen needs the system libraries libGL and glib ({message}): install Debian's "
            "packages libgl1 and libglib2.0-0 (apt-get install libgl1 libglib2.0-0)"
        )
    return f"envpool could not be loaded ({message}): try {_INSTALL} in a new environment"
