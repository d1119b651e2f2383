"""One typed record: what is written is read again, and what makes no sense is named."""

from __future__ import annotations

import os

import pytest
from lab.tests.toys import make_cell, write_run

from orderless_lab.report import ReportError, summarize, write_report
from orderless_lab.runs import Store, StoreError, load_run
from orderless_lab.runs.cell import CellRecord
from orderless_lab.runs.store import LARGEST_CELL, as_json


def test_a_run_is_written_by_the_store_and_read_as_it_was(tmp_path):
    cells = [make_cell(name, order, 0) for name in ("gd", "wpf") for order in (1, 0)]
    records = [CellRecord.model_validate(cell) for cell in cells]
    run = load_run(write_run(tmp_path, cells))
    assert set(map(str, run.cells)) == set(map(str, records))
    identities = [(cell.method, cell.order_index) for cell in run.cells]
    assert identities == [("gd", 0), ("gd", 1), ("wpf", 0), ("wpf", 1)]
    assert run.cells[0].name == "splitmnist-domain-table1-gd-order0-seed0"
    assert CellRecord.model_validate(as_json(records[0]) | {"new": [1]}) == records[0]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"log_evidence": 10**400}, "log_evidence"),
        ({"seed": True}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"ess": {}}, "ess"),
        ({"ess": "3"}, "ess"),
        ({"nll": [1.0, "2"]}, "nll.1"),
        ({"unit": "points"}, "unit"),
        ({"settings": {"lr": []}}, "settings.lr"),
        ({"order": [0, 0, 1, 2, 3]}, "order"),
        ({"task_names": ["one"]}, "task_names"),
        ({"predictions": ["no base64"]}, "predictions"),
        ({"trace": {"ess": {}}}, "trace.ess"),
        ({"expert": {"level_returns": "x"}}, "expert.level_returns"),
        ({"described": {"name": "x", "style": {"colour": "red;", "marker": "o"}}}, "described"),
        ({"benchmark": None}, "benchmark"),
        ({"scores": {}}, "scores.particles"),
        ({"scores": {"particles": [[0.5]]}}, "scores.particles"),
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
