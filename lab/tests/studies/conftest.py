"""Studies as modules: each is a script in lab/studies."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture
def study(request, monkeypatch) -> ModuleType:
    """The study that a test file is named after: test_slopes.py tests slopes.py."""
    name = request.path.stem.removeprefix("test_")
    monkeypatch.syspath_prepend(str(STUDIES))
    yield importlib.import_module(name)
    for script in STUDIES.glob("*.py"):
        sys.modules.pop(script.stem, None)
