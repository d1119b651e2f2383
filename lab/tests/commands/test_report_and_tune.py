"""`orderless report` and `orderless tune`."""

import json
import shutil

import pytest
from lab.tests.toys import TUNED
from tests.cli.commands import refused, run

from orderless_lab.runs import Store


def test_report_json_is_json_and_nothing_else(finished):
    result = run("report", finished, "--json")
    summary = json.loads(result.stdout)
    assert result.stderr == "" and summary["benchmark"] == "splitmnist"
    assert set(summary["methods"]) == {"gd", "ewc"}
    measures = {"average", "average_logits", "average_probs", "variance", "nll", "ece"}
    assert measures <= set(summary["methods"]["gd"])


def test_a_report_of_nothing_or_of_a_damaged_cell_is_refused(finished, tmp_path):
    assert "holds no finished cells" in refused("report", tmp_path)
    assert "holds no finished cells" in refused("report", tmp_path, "--json")
    assert "is not a directory" in refused("report", tmp_path / "x")
    shutil.copytree(finished, tmp_path / "run")
    path = sorted((tmp_path / "run" / "cells").glob("*.json"))[0]
    path.write_bytes(path.read_bytes()[:-50])
    assert str(path) in refused("report", tmp_path / "run")


@pytest.mark.slow
def test_tune_picks_the_best_value(tmp_path):
    said = run("tune", "splitmnist", "lr", "1e-9,0.3,1e6", *TUNED, "--out", tmp_path).stdout
    assert said.splitlines()[-1] == "best: lr=0.3"
    for value in ("1e-9", "0.3"):
        (record,) = Store(tmp_path / f"lr={value}").finished().values()
        assert record["settings"]["validation"] == 0.1


@pytest.mark.slow
def test_tune_goes_on_where_the_best_value_lies_at_the_end(tmp_path):
    said = run("tune", "splitmnist", "lr", "1e-9,0.1", *TUNED, "--out", tmp_path).stdout
    *_, told, best = said.splitlines()
    assert told.startswith("the best value lay at the grid's end") and "; also tried 1" in told
    assert best != "best: lr=1e-9" and (tmp_path / "lr=1").is_dir()


def test_tune_refuses_what_it_cannot_try(tmp_path):
    command = ["tune", "splitmnist", "--preset", "demo", "--out", tmp_path / "run"]
    assert "'x'" in refused(*command, "x", "1")
    assert "lr=-1" in refused(*command, "lr", "0.1,-1")
    assert "at least one value" in refused(*command, "lr", ",")
    assert "perturbation has no effect on gd" in refused(*command, "perturbation", "0.1")
    assert "set validation=0.1" in refused(*command, "lr", "1", "--set", "validation=0")
    assert not (tmp_path / "run").exists()
