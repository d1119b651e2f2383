"""One typed record: what is written is read again, and what makes no sense is named."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Literal

import pytest
from lab.tests.report.synthetic_cells import make_cell, write_run

from orderless_lab.experiments import Store, StoreError
from orderless_lab.experiments.record import CellRecord, load_run
from orderless_lab.report import ReportError, summarize, write_report
from orderless_lab.storage.directory import LARGEST_CELL
from orderless_lab.storage.typed import Misfit, as_json, decode, optional


@dataclass(frozen=True)
class Inner:
    number: float
    word: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    count: int
    inner: dict[str, list[Inner]]
    flag: bool | Literal["open"] = False
    row: list[float | None] = field(default_factory=list)
    extra: str | None = optional()


# ---------------------------------------------------------------------- JSON and dataclasses


def test_what_is_encoded_is_decoded_again():
    value = Outer(3, {"x": [Inner(0.5), Inner(2.0, "b")]}, "open", [1.0, None], "more")
    assert decode(Outer, json.loads(json.dumps(as_json(value)))) == value
    assert "extra" not in as_json(Outer(1, {}))


def test_unknown_keys_are_ignored_missing_ones_have_their_defaults_and_null_is_missing():
    found = decode(Outer, {"count": 1, "inner": {}, "row": None, "flag": None, "new": [1]})
    assert found == Outer(1, {})


def test_a_number_that_is_not_finite_is_null():
    assert as_json(Inner(float("nan"))) == {"number": None, "word": "a"}
    with pytest.raises(TypeError, match="set has no place in JSON"):
        as_json({1})


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"count": True}, "count"),
        ({"count": 1.5}, "count"),
        ({"count": 10**400}, "count"),
        ({"count": None}, "count"),
        ({"inner": []}, "inner"),
        ({"inner": {"x": {}}}, "inner.x"),
        ({"inner": {"x": [{"number": 10**400}]}}, "inner.x.number"),
        ({"inner": {"x": [{"number": float("inf")}]}}, "inner.x.number"),
        ({"inner": {"x": [{"number": 1, "word": "c"}]}}, "inner.x.word"),
        ({"inner": {"x": [{"number": 1, "word": []}]}}, "inner.x.word"),
        ({"flag": "shut"}, "flag"),
        ({"row": [1.0, "2"]}, "row"),
        ({"extra": 3}, "extra"),
    ],
)
def test_the_first_misfit_is_named(change, path):
    with pytest.raises(Misfit) as caught:
        decode(Outer, {"count": 1, "inner": {}} | change)
    assert str(caught.value) == path


# ---------------------------------------------------------------------- cells


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"log_evidence": 10**400}, "log_evidence"),
        ({"ess": {}}, "ess"),
        ({"settings": {"lr": []}}, "settings.lr"),
        ({"order": [0, 0, 1, 2, 3]}, "order"),
        ({"task_names": ["one"]}, "task_names"),
        ({"predictions": ["no base64"]}, "predictions"),
        ({"trace": {"ess": {}}}, "trace.ess"),
        ({"expert": {"network": "x"}}, "expert.levels"),
        ({"described": {"name": "x", "style": {"colour": "red;", "marker": "o"}}}, "described"),
        ({"benchmark": None}, "benchmark"),
        ({"scores": {}}, "scores.accuracy"),
    ],
)
def test_a_senseless_cell_with_the_right_checksum_is_one_sentence(tmp_path, change, what):
    store = Store(tmp_path)
    store.prepare()
    store.write_cell("odd", make_cell("gd", 0, 0) | change)
    with pytest.raises(StoreError) as caught:
        load_run(tmp_path)
    sentence = str(caught.value)
    assert "odd.json" in sentence and what in sentence and "\n" not in sentence
    with pytest.raises(ReportError, match=r"odd\.json"):
        summarize(tmp_path)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "endless"])
def test_what_is_no_file_is_named_and_never_waited_for(tmp_path, kind):
    directory = write_run(tmp_path, [make_cell("gd", 0, 0)])
    path = directory / "cells" / "z.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(LARGEST_CELL + 1)  # a hole: it takes no space
    with pytest.raises(ReportError, match=r"z\.json is damaged \(it is (no file|larger than any)"):
        write_report(directory)


def test_a_run_is_written_by_the_store_and_read_as_it_was(tmp_path):
    cells = [make_cell(name, order, 0) for name in ("gd", "wpf") for order in (1, 0)]
    records = [decode(CellRecord, cell) for cell in cells]
    run = load_run(write_run(tmp_path, cells))
    assert set(map(str, run.cells)) == set(map(str, records))
    identities = [(cell.method, cell.order_index) for cell in run.cells]
    assert identities == [("gd", 0), ("gd", 1), ("wpf", 0), ("wpf", 1)]
    assert run.cells[0].name == "splitmnist-domain-table1-gd-order0-seed0"
