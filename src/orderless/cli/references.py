"""Objects of a user's own modules, named as `module:name` on the command line."""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from ..errors import UserError, did_you_mean


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
            raise UserError(
                f"there is no module {name!r} here: run from the folder that holds it, or install "
                "it; give the name as in an import statement, not a file name"
            ) from None
        raise UserError(f"module {name} needs {missing!r}, which is not installed") from error
    except SystemExit as error:
        raise UserError(f"module {name} cannot be imported: SystemExit: {error}") from error


def find_object(reference: str, what: str) -> Any:
    """The object `module:name`; the module may be in the current folder."""
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise UserError(f"{what} must be given as module:name, got {reference!r}")
    found: Any = import_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"module {module_name} has no {name!r}{did_you_mean(name, dir(found))}")
        found = getattr(found, part)
    return found


def made_by(reference: str, what: str) -> Any:
    """The object `module:name`; if it is callable, the result of calling it."""
    given = find_object(reference, what)
    return given() if callable(given) else given
