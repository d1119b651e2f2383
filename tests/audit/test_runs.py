"""An audit that is stopped goes on where it stopped, and never with other runs."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.audit.toys import LastTask, make_sgd, toy_tasks

import orderless as ol


def audit(make_learner=None, tasks=None, **options):
    options = {"orders": 3, "seeds": 2, "name": "mine", **options}
    return ol.order_sensitivity(make_learner or make_sgd(), tasks or toy_tasks(), **options)


def runs_in(folder) -> list[bytes]:
    return [line for line in (folder / "runs.jsonl").read_bytes().split(b"\n") if line]


def numbers(result) -> dict:
    content = copy.deepcopy(result.as_dict())
    for learner in (content["learner"], *content["comparisons"]):
        del learner["seconds"]
    return content


class Counted:
    """Counts the learners it makes, and stops before the one after the last."""

    def __init__(self, last: int | None = None) -> None:
        self.made, self.last, self.make = 0, last, make_sgd()

    def __call__(self, seed: int):
        if self.made == self.last:
            raise KeyboardInterrupt
        self.made += 1
        return self.make(seed)


def test_a_stopped_audit_goes_on_and_runs_only_what_is_missing(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        audit(Counted(last=5), out=tmp_path)  # the first run makes two
    assert len(runs_in(tmp_path)) == 4
    told, rest = [], Counted()
    result = audit(rest, out=tmp_path, progress=lambda *said: told.append(said))
    assert rest.made == 2
    assert told[0][:2] == (4, 6) and "mine, seed 1" in told[0][2] and told[-1] == (6, 6, "done")
    assert numbers(result) == numbers(audit())
    again = Counted()
    assert audit(again, out=tmp_path).json() == result.json() and again.made == 0


def test_a_killed_audit_goes_on_from_the_runs_that_were_written_whole(tmp_path) -> None:
    """kill -9 in the third run, and then a line of which only the beginning was written."""
    program = (
        "import os, sys\n"
        "from tests.audit.test_runs import Counted, audit\n"
        "class Killed(Counted):\n"
        "    def __call__(self, seed):\n"
        "        return os.kill(os.getpid(), 9) if self.made == 3 else super().__call__(seed)\n"
        "audit(Killed(), out=sys.argv[1])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True)
    assert ended.returncode == -9 and len(runs_in(tmp_path)) == 2
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(b"\n" + runs_in(tmp_path)[0][:100])
    rest = Counted()
    assert numbers(audit(rest, out=tmp_path)) == numbers(audit())
    assert rest.made == 4


def test_more_orders_and_learners_are_added_to_what_is_there(tmp_path) -> None:
    audit(out=tmp_path)
    more = Counted()
    both = {"orders": 5, "compare": {"last": LastTask}}
    result = audit(more, out=tmp_path, **both)
    assert more.made == 2 * (5 - 3)
    assert numbers(result) == numbers(audit(**both))


@pytest.fixture
def kept(tmp_path):
    """The folder of a finished audit."""
    audit(out=tmp_path / "audit", key="first version")
    return tmp_path / "audit"


def test_a_run_whose_bits_were_changed_is_made_again(kept) -> None:
    before = numbers(audit(key="first version", out=kept))
    lines = runs_in(kept)
    lines[3] = lines[3].replace(b'"broken": false', b'"broken": true')
    (kept / "runs.jsonl").write_bytes(b"\n".join(lines))
    again = Counted()
    assert numbers(audit(again, out=kept, key="first version")) == before
    assert again.made == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": toy_tasks(seed=1)}, "an audit of other data"),
        ({"key": "second version"}, "another version of the learner"),
    ],
)
def test_runs_that_were_made_otherwise_are_refused(changes, words: str, kept) -> None:
    before = runs_in(kept)
    with pytest.raises(ValueError, match=words) as caught:
        audit(out=kept, **{"key": "first version", **changes})
    assert "choose another folder" in str(caught.value)
    assert runs_in(kept) == before


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path) -> None:
    (tmp_path / "report.md").write_text("somebody else's")
    with pytest.raises(ValueError, match="no audit: choose another folder"):
        audit(out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_the_rows_of_a_matrix_are_what_was_known_after_each_task() -> None:
    result = audit(LastTask)
    tasks = toy_tasks()
    for number, order in enumerate(result.orders):
        for row, learned in enumerate(order):
            learner = LastTask(0)
            learner.learn(tasks[learned].x, tasks[learned].y)
            expected = [
                (learner.predict(task.x_test).argmax(1) == task.y_test).double().mean().item()
                for task in tasks
            ]
            assert np.allclose(result.learner.matrices[0, number, row], expected, atol=1e-12)
    assert np.array_equal(result.learner.matrices[:, :, -1], result.learner.scores)


def test_what_predict_draws_at_random_does_not_change_what_is_learned() -> None:
    class Noisy(LastTask):
        draws = 0

        def learn(self, x, y, task=None):
            super().learn(x + torch.randn(x.shape), y)

        def predict(self, x):
            torch.randn(self.draws)
            return super().predict(x)

    class Drawing(Noisy):
        draws = 7

    quiet, loud = (audit(each).learner.scores for each in (Noisy, Drawing))
    assert np.array_equal(quiet, loud)


def test_a_kept_run_is_a_line_of_plain_json_with_a_checksum(kept) -> None:
    checksum, name, about, record = json.loads(runs_in(kept)[-1])
    assert len(checksum) == 64 and name.startswith("mine seed 1 order ")
    assert about["key"] == "first version" and np.array(record["matrix"]).shape == (4, 4)
