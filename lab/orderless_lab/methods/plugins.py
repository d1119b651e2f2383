"""Plug-ins: modules named on the command line, and installed packages."""

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

GROUP = "orderless_lab.methods"  # entry points of installed packages


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Import the modules that register methods: these, and those of installed packages."""
    for name in modules:
        import_module(name)
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            raise ValueError(
                f"the installed plug-in {point.name} ({point.value}) cannot be imported: "
                f"{type(error).__name__}: {error}; uninstall or fix it"
            ) from error


def import_module(name: str) -> ModuleType:
    """Import a module by name, also from the current folder."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise ValueError(
                f"there is no module {name!r} here: run from the folder that holds it, or install "
                "it; give the name as in an import statement, not a file name"
            ) from None
        raise ValueError(f"module {name} needs {missing!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        text = f"module {name} cannot be imported: {type(error).__name__}: {error}"
        raise ValueError(text) from error


def made_by(reference: str, what: str) -> Any:
    """The object `module:name`; if it is callable, the result of calling it."""
    given = find_object(reference, what)
    if not callable(given):
        return given
    try:
        return given()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{reference} failed: {type(error).__name__}: {error}") from error


def find_object(reference: str, what: str) -> Any:
    """The object `module:name`; the module may be in the current folder."""
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"{what} must be given as module:name, got {reference!r}")
    found: Any = import_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"module {module_name} has no {name!r}: check the spelling")
        found = getattr(found, part)
    return found
