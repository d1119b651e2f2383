"""The suites by name."""

from functools import lru_cache
from importlib import import_module

from orderless.errors import UserError, did_you_mean

from . import BENCHMARKS
from .base import Suite
from .own import OwnSuite

SUITES: dict[str, Suite] = {}


def register(suite: Suite) -> Suite:
    """Make a suite known by its name to every command, table and figure."""
    SUITES[suite.name] = suite
    return suite


for module, name in BENCHMARKS.values():
    register(getattr(import_module(f".{module}", __package__), name))


def find_suite(name: str) -> Suite:
    """A suite by its name, or that of a user's own tasks, `module:name`."""
    if ":" in name:
        return own_suite(name)
    if name not in SUITES:
        raise UserError(
            f"unknown benchmark {name!r}{did_you_mean(name, SUITES)}: choose from "
            f"{', '.join(SUITES)} or your own module:name"
        )
    return SUITES[name]


own_suite = lru_cache(maxsize=4)(OwnSuite)


def label_of(name: str) -> str:
    """The name of a suite in tables and figures."""
    return SUITES[name].label if name in SUITES else name
