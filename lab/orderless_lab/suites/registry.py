"""The suites by name."""

from functools import lru_cache

from orderless.errors import UserError, did_you_mean

from .base import Suite
from .intents import INTENTS
from .own import OwnSuite
from .procgen import PROCGEN_BC, PROCGEN_LIFELONG
from .splitcifar100 import SPLIT_CIFAR100
from .splitmnist import SPLIT_MNIST

SUITES: dict[str, Suite] = {}


def register(suite: Suite) -> Suite:
    """Make a suite known by its name to every command, table and figure."""
    SUITES[suite.name] = suite
    return suite


for known in (SPLIT_MNIST, SPLIT_CIFAR100, INTENTS, PROCGEN_BC, PROCGEN_LIFELONG):
    register(known)


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
