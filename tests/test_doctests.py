"""The examples in docstrings run, and every public class and metric has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from operator import attrgetter

import pytest
import torch

import orderless
from orderless import audit, metrics

NAMES = {"ol": orderless, "torch": torch}  # every example may use them without an import
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
MODULES = [
    module.name
    for module in pkgutil.walk_packages(orderless.__path__, "orderless.")
    if not module.name.startswith("orderless.cuda") and not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as missing:
        pytest.skip(str(missing))
    torch.manual_seed(0)
    failed, _ = doctest.testmod(module, extraglobs=NAMES, optionflags=FLAGS)
    assert not failed


PUBLIC = [
    *orderless._HOMES,
    *(f"metrics.{name}" for name in metrics.__all__),
    *(f"audit.{name}" for name in audit.__all__),
]


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(attrgetter(name)(orderless)) or "")
