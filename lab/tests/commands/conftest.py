"""A small finished run, and a place without data sets."""

import pytest
from lab.tests.toys import SMALL
from tests.cli.commands import run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    said = run("run", "splitmnist", *SMALL, "--methods", "gd,gd, ewc", "--out", folder).stdout
    assert "2 cells computed" in said and "SplitMNIST" in said
    return folder


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    monkeypatch.delenv("ORDERLESS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path
