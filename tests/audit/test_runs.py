"""An audit that is stopped goes on where it stopped, and never with other runs."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from tests.audit.toys import LastTask, make_sgd, toy_tasks

import orderless as ol
from orderless.audit import ComparisonSettings
from orderless_lab.experiments import Store, StoreError

SMALL = ComparisonSettings(particles=2, hidden=4, batch_size=8, maps=2, features=16)
OPTIONS = {"compare": ("rb",), "settings": SMALL, "name": "mine"}


def audit(make_learner=None, tasks=None, orders: int = 3, **options):
    make_learner, tasks = make_learner or make_sgd(), tasks or toy_tasks()
    return ol.order_sensitivity(make_learner, tasks, orders, 2, **{**OPTIONS, **options})


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


@pytest.mark.slow
def test_a_stopped_audit_goes_on_and_runs_only_what_is_missing(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        audit(Counted(last=5), out=tmp_path)  # the first run makes two
    assert len(list((tmp_path / "cells").glob("*.json"))) == 4
    told, rest = [], Counted()
    result = audit(rest, out=tmp_path, progress=lambda *said: told.append(said))
    assert rest.made == 2
    assert told[0] == (4, 12, "mine seed 1 order 1") and told[-1] == (12, 12, "done")
    assert numbers(result) == numbers(audit())
    again = Counted()
    assert audit(again, out=tmp_path).json() == result.json() and again.made == 0


@pytest.mark.slow
def test_more_orders_and_learners_are_added_to_what_is_there(tmp_path) -> None:
    audit(out=tmp_path, compare=())
    more = Counted()
    result = audit(more, orders=5, out=tmp_path)
    assert more.made == 2 * (5 - 3)
    assert numbers(result) == numbers(audit(orders=5))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished audit: its folder, and what it found."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, audit(out=folder, key="first version")


@pytest.fixture
def kept(finished, tmp_path):
    """Its runs in a folder of the test's own."""
    return shutil.copytree(finished[0], tmp_path / "audit")


def test_a_damaged_run_is_set_aside_and_computed_again(finished, kept) -> None:
    path = kept / "cells" / "mine-order1-seed0.json"
    path.write_text(path.read_text().replace('"broken": false', '"broken": true'))
    again = Counted()
    with pytest.warns(UserWarning, match="was damaged"):
        after = audit(again, out=kept, key="first version")
    assert again.made == 1 and numbers(after) == numbers(finished[1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": toy_tasks(seed=1)}, "an audit on other tasks"),
        ({"key": "second version"}, "runs of another version of mine"),
        ({"settings": ComparisonSettings(maps=3, features=16)}, "another version of rb"),
        ({"order_seed": 5}, "runs of other orders of mine"),
    ],
)
def test_runs_that_were_made_otherwise_are_refused(changes, words: str, kept) -> None:
    before = {path: path.read_bytes() for path in (kept / "cells").iterdir()}
    with pytest.raises(StoreError, match=words) as caught:
        audit(out=kept, **{"key": "first version", **changes})
    assert "choose another folder" in str(caught.value)
    assert {path: path.read_bytes() for path in (kept / "cells").iterdir()} == before


def test_the_directory_of_an_experiment_is_refused_and_left_as_it_is(tmp_path) -> None:
    store = Store(tmp_path)
    store.prepare()
    store.write_cell("tiny-domain-demo-gd-order0-seed0", {"method": "gd", "order": [0, 1]})
    (tmp_path / "report.md").write_text("the experiment's")
    with pytest.raises(StoreError, match="holds no audit: choose another folder"):
        audit(out=tmp_path)
    assert (tmp_path / "report.md").read_text() == "the experiment's"


def test_more_runs_than_anybody_can_compute_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="at most 100,000 cells at once"):
        ol.order_sensitivity(make_sgd(), toy_tasks(), 2, 10**30)


def test_two_audits_do_not_write_to_one_folder(tmp_path) -> None:
    store = Store(tmp_path)
    store.prepare("cells")
    with store.lock(), pytest.raises(StoreError, match="another run is writing"):
        audit(out=tmp_path)


def test_names_that_are_no_file_names_are_kept_apart(tmp_path) -> None:
    both = {"a/b": LastTask, "a%2Fb": LastTask}
    audit(compare=both, name="..", out=tmp_path)
    assert len(list((tmp_path / "cells").glob("*.json"))) == 3 * 6
    assert {path.name for path in tmp_path.iterdir()} <= {"cells", ".lock"}
    assert audit(compare=both, name="..", out=tmp_path)["a/b"].ignores_seed


def test_the_rows_of_a_matrix_are_what_was_known_after_each_task() -> None:
    result = audit(LastTask, compare=())
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

    quiet, loud = (audit(each, compare=()).learner.scores for each in (Noisy, Drawing))
    assert np.array_equal(quiet, loud)


def test_a_kept_run_is_plain_json_with_a_checksum(kept) -> None:
    wrapper = json.loads((kept / "cells" / "rb-order0-seed1.json").read_text())
    assert len(wrapper["checksum"]) == 64
    record = wrapper["cell"]
    assert (record["learner"], record["order_index"], record["seed"]) == ("rb", 0, 1)
    assert record["maker"]["settings"]["maps"] == 2
