"""What version 9e4f422 left on disk (`make.py` wrote it there) is read and gone on with."""

import json
import operator
import shutil
from pathlib import Path

import pytest
import torch
from tests.legacy import make
from typer.testing import CliRunner

import orderless as ol
from orderless.cli.main import app
from orderless.experiments import Store
from orderless.storage import read_cell, versions

HERE = Path(__file__).parent


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The run directory, as if it had been written with this machine's versions of torch and numpy.

    With others a cell begins anew; and a cell's record names the versions that made it.
    """
    folder = Path(shutil.copytree(HERE / "run", tmp_path / "run"))
    (checkpoint,) = (folder / "checkpoints").iterdir()
    ol.save(checkpoint, {**ol.load(checkpoint), "versions": versions()})
    return folder


@pytest.mark.slow
def test_a_cell_goes_on_from_the_middle_and_ends_as_if_never_stopped(run, monkeypatch) -> None:
    finished = {path.name: path.read_bytes() for path in (run / "cells").iterdir()}
    saved = []
    monkeypatch.setattr(Store, "save_checkpoint", lambda *arguments: saved.append(arguments))
    result = CliRunner().invoke(app, [*make.RUN, "--out", str(run)])
    assert result.exit_code == 0, result.output
    assert "1 cells computed" in result.stdout
    assert len(saved) == 20 - make.STEPS  # one for every step that was left
    for name, content in finished.items():
        assert (run / "cells" / name).read_bytes() == content
    ours = read_cell(run / "cells" / f"{make.CELL}.json")
    theirs = read_cell(HERE / "uninterrupted.json")
    # settings that came later have their default values
    common = ours["settings"].keys() & theirs["settings"].keys()
    assert len(common) > 20
    assert all(ours["settings"][key] == theirs["settings"][key] for key in common)
    for key in ("order", "scores", "trace", "plasticity", "log_evidence", "ess", "moved"):
        # to the bit on the machine that wrote it; other processors add in another order
        assert flat(ours[key]) == pytest.approx(flat(theirs[key]), rel=1e-5, abs=1e-6), key
    # one row of the table then is one of the table now, which has other columns and another order
    for row in (HERE / "report.md").read_text().splitlines()[4:6]:
        name, average, _, logits, probs, *_ = [each.strip() for each in row.strip("|").split("|")]
        (now,) = [line for line in (run / "report.md").read_text().splitlines() if name in line[:9]]
        assert {average, logits, probs} <= {each.strip() for each in now.split("|")}


def flat(value, name="") -> dict:
    """Every number of a record by its place in it."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, each in items for k, v in flat(each, f"{name}/{key}").items()}
    return {name: value}


def test_a_run_is_read(run) -> None:
    result = CliRunner().invoke(app, ["report", str(run), "--json"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    ends = {
        method: [
            read_cell(path)["scores"]["accuracy"][-1]
            for path in sorted((HERE / "run" / "cells").glob(f"*-{method}-*.json"))
        ]
        for method in ("gd", "wpf")
    }
    for method, rows in ends.items():
        accuracies = [value for row in rows for value in row]
        average = sum(accuracies) / len(accuracies)
        assert summary["methods"][method]["average"] == pytest.approx(average, abs=1e-9)


def test_a_saved_filter_predicts_and_learns_as_it_did() -> None:
    expected = json.loads((HERE / "predictions.json").read_text())
    filter = ol.load(HERE / "weighted.safetensors", into=make.make_filter())
    x, _ = make.data()
    # float32, added in another order by other processors
    close = {"rtol": 1e-5, "atol": 1e-6}
    before, after = (torch.tensor(expected[key]) for key in ("weighted", "weighted after"))
    torch.testing.assert_close(filter.predict(x), before, check_dtype=False, **close)
    make.learn(filter, make.make_exact_filter())
    torch.testing.assert_close(filter.predict(x), after, check_dtype=False, **close)


def test_a_saved_exact_filter_has_the_sums_it_had() -> None:
    """The oracle is a filter fed the same data. Samples to judge heads by were not kept then."""
    saved = ol.load(HERE / "exact.safetensors", into=make.make_exact_filter())
    once = make.make_exact_filter()
    x, y = make.data()
    for _ in range(2):
        make.learn(make.make_filter(), once)
        ours, theirs = flat(saved.state_dict()), flat(once.state_dict())
        sums = [key for key in theirs if "kept" not in key]
        assert len(sums) > 5
        for key in sums:
            same = torch.equal if isinstance(theirs[key], torch.Tensor) else operator.eq
            assert same(ours[key], theirs[key]), key
        assert saved.predict(x).isfinite().all()
        saved.update(x, y)
