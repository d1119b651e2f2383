"""Benchmarks of a user's own: `module:name` on the command line, from data to report."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.toys import stop_after
from tests.cli.commands import refused, run
from torch.utils.data import TensorDataset

import orderless as ol
from orderless_lab.runs import Grid, Store, run_grid
from orderless_lab.runs.launch import Listener
from orderless_lab.suites import Scenario, Task
from orderless_lab.suites import SupervisedSettings as Settings
from orderless_lab.suites.own import as_scenario
from orderless_lab.suites.registry import own_suite

PAGE = Path(__file__).parents[3] / "docs" / "your-own-data.md"
NUMBER = itertools.count()
QUICK = ["--particles", "2", "--set", "hidden=5", "--set", "exact_features=16", "--workers", "1"]


def data(seed: int = 0, n: int = 40, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return x, first + (x[:, 0] > 0).long()


def module(monkeypatch: pytest.MonkeyPatch, tasks: Any) -> str:
    """`module:tasks` of a new module."""
    name = f"somebodys_module_{next(NUMBER)}"  # a benchmark is made once for every name
    made = ModuleType(name)
    made.tasks = tasks  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, made)
    return f"{name}:tasks"


def same(a: Scenario, b: Scenario) -> bool:
    pairs = zip(a.tasks, b.tasks, strict=True)
    parts = ("x", "y", "x_test", "y_test")
    return all(torch.equal(getattr(s, p), getattr(t, p)) for s, t in pairs for p in parts)


# ---------------------------------------------------------------------- forms of tasks


def test_all_forms_of_the_same_tasks_are_the_same_scenario() -> None:
    train, test = data(0), data(1)
    task = Task(*train, *test)
    expected = as_scenario([task], "domain")
    arrays = tuple(part.numpy() for part in train)
    forms = [
        (train, test),
        [train, test],
        (arrays, test),
        (TensorDataset(*train), TensorDataset(*test)),
        ((train[0].double(), train[1]), test),
    ]
    assert all(same(as_scenario([form], "domain"), expected) for form in forms)
    assert same(as_scenario(Scenario([task]), "domain"), expected)
    assert torch.equal(expected.test_set(0)[0], test[0])


@pytest.mark.parametrize("given", [data(0), TensorDataset(*data(0))])
def test_without_test_data_a_fifth_of_every_class_is_held_out(given: Any) -> None:
    x, y = data(0)
    (task,) = as_scenario([given], "domain").tasks
    for label in (0, 1):
        assert int((task.y_test == label).sum()) == round(0.2 * int((y == label).sum()))
    together = torch.cat([task.x, task.x_test])
    assert len(together) == len(x)
    assert torch.equal(together.sort(0).values, x.sort(0).values)


# classes of their own in every task
PAIRS = [(data(t, first=2 * t), data(9 + t, first=2 * t)) for t in range(3)]
OBJECTS = [Task(*train, *test, name=f"day {t}") for t, (train, test) in enumerate(PAIRS)]


@pytest.mark.parametrize("given", [PAIRS, OBJECTS], ids=["pairs", "objects"])
def test_classes_of_ones_own_are_numbered_task_by_task(given: Any) -> None:
    for kind in ("task", "class"):
        scenario = as_scenario(given, kind)
        assert scenario.outputs == 6
        assert [scenario.test_targets(t).unique().tolist() for t in range(3)] == [
            [0, 1],
            [2, 3],
            [4, 5],
        ]
    with pytest.warns(UserWarning, match="share a label.*--scenario class"):
        assert as_scenario(given, "domain").outputs == 6  # one label space, as the labels are


def test_a_task_object_keeps_its_name() -> None:
    assert as_scenario(OBJECTS, "class").task_names == ["day 0", "day 1", "day 2"]


def test_images_are_bytes_until_a_network_sees_them() -> None:
    x = torch.randint(256, (20, 1, 4, 4), dtype=torch.uint8)
    scenario = as_scenario([((x, torch.arange(20) % 2), (x, torch.arange(20) % 2))], "domain")
    assert scenario.tasks[0].x.dtype == torch.uint8
    assert torch.equal(scenario.test_set(0)[0], x.float() / 255)


def test_bytes_beside_floats_are_divided_by_255_too() -> None:
    x, y = torch.randint(256, (20, 4), dtype=torch.uint8), torch.arange(20) % 2
    scenario = as_scenario([((x, y), (x / 255, y))], "domain")
    assert torch.equal(scenario.train_set(0)[0], scenario.test_set(0)[0])


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.int8, np.int64])
def test_labels_may_be_integers_of_any_size(kind: Any) -> None:
    x, y = data()
    scenario = as_scenario([(x.numpy(), (y.numpy() + 3).astype(kind))], "class")
    assert scenario.targets(0).unique().tolist() == [0, 1]


def test_a_scenario_keeps_its_kind_unless_another_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = Scenario([Task(*data(0), *data(1)), Task(*data(2), *data(3))], kind="class")
    suite = own_suite(module(monkeypatch, mine))
    assert suite.variants == ("class", "domain", "task")
    assert suite.most_orders("class", Settings()) == 2
    assert suite.load("task", Settings(), 0, None, "cpu").outputs == 4
    held = suite.load("domain", Settings(validation=0.25), 0, None, "cpu")
    assert len(held.tasks[0].y_test) == 10  # of the 40 training samples


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        (3, "must be a Scenario, a list of tasks, or a function without arguments"),
        ([], "that makes one, got a list of length 0"),
        (["monday"], "task 0 must be an ol.Task, (training, test), or (x, y), got a str"),
        ([data(), 7], "task 1 must be an ol.Task, (training, test), or (x, y), got a int"),
        (
            [(*data(), *data(1))],
            "task 0 must be an ol.Task, (training, test), or (x, y), got a tup",
        ),
        ([(data()[0], data()[0])], "task 0: labels must be integers"),
        ([(np.zeros((4, 2)), np.array(["a", "b", "a", "b"]))], "task 0: labels must be integers"),
        ([(data()[0], data()[1][:5])], "task 0: there must be as many inputs as labels"),
        ([(data()[0], -data()[1])], "task 0: labels must be 0 or larger, got -1"),
        ([data(), (data()[0][:, :2], data()[1])], "all tasks must have inputs of one shape"),
        ([(data()[0] / 0, data()[1])], "inputs must be finite"),
        ([(data()[0][:, 0], data()[1])], "inputs must have the shape [n, ...], got [n]"),
        ([(data()[0], 999 * data()[1])], "there may be 256 outputs"),
        (Scenario([Task(data()[0].double(), data()[1], *data())]), "learn from float32, got"),
    ],
)
def test_a_mistake_is_one_sentence(
    tasks: Any, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reference = module(monkeypatch, tasks)
    said = refused("run", reference, "--methods", "gd", "--out", tmp_path, "--device", "cpu")
    assert said.startswith(f"orderless: {reference}") and sentence in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nowhere:tasks", "there is no module 'nowhere' here"),
        ("math:tasks", "module math has no 'tasks'"),
        ("math:", "your own tasks must be given as module:name, got 'math:'"),
        ("nowhere", " or your own module:name"),
    ],
)
def test_names_that_lead_nowhere_are_told(words: str, sentence: str) -> None:
    assert sentence in refused("run", words)


# ---------------------------------------------------------------------- the page's example


def example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """`my_module.py` as the page prints it, in the current folder; `module:tasks`."""
    (text,) = re.findall(r'```python title="my_module.py"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    name = f"my_module_{next(NUMBER)}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return f"{name}:tasks"


@pytest.mark.slow
def test_a_run_goes_on_reports_and_refuses_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = example(tmp_path, monkeypatch)
    command = ["run", reference, "--methods", "gd,wpf,exact", "--device", "cpu", *QUICK]
    assert "3 cells computed" in run(*command, "--permutations", "1").stdout
    assert "12 cells computed" in run(*command).stdout  # five orders by default
    folder = tmp_path / "runs" / f"{reference.replace(':', '-')}-own"
    assert reference in (folder / "report.html").read_text()
    assert reference in json.loads(run("report", folder, "--json").stdout)["command"]

    # the same name, other data: nothing of both is put into one table
    own_suite.cache_clear()
    changed = sys.modules[reference.partition(":")[0]]
    days = changed.tasks()
    monkeypatch.setattr(changed, "tasks", days[::-1])
    assert "of other data: choose another --out" in refused(*command)


def test_a_cell_that_was_stopped_does_not_go_on_with_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = module(monkeypatch, [data(0), data(1)])
    grid = Grid.plan(reference, methods="gd", permutations=1, hidden=4, batch_size=8)
    with pytest.raises(KeyboardInterrupt):
        listener = Listener(tick=stop_after(5))
        run_grid(grid, Store(tmp_path / "run"), checkpoint_every=0, listener=listener)
    assert list((tmp_path / "run" / "checkpoints").iterdir())

    own_suite.cache_clear()
    monkeypatch.setattr(sys.modules[reference.partition(":")[0]], "tasks", [data(2), data(3)])
    ends = []
    for folder in ("run", "fresh"):
        store = Store(tmp_path / folder)
        assert run_grid(grid, store) == 1
        (record,) = store.finished().values()
        ends.append((record["scores"], record["trace"]))
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_the_exact_filter_is_right_on_a_users_own_data_in_every_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the filter itself, fed with the tasks in one go."""
    reference = example(tmp_path, monkeypatch)
    exact = ["run", reference, "--methods", "exact", "--permutations", "3", "--workers", "1"]
    whole = ["--set", "batch_size=20"]  # no sample is left over
    maps = ["--set", "exact_features=64", "--set", "exact_particles=8"]
    run(*exact, *whole, *maps, "--device", "cpu")
    (module_name, _, _) = reference.partition(":")
    days = sys.modules[module_name].tasks()
    ensemble = ol.Ensemble(lambda: ol.features.RandomReLU(6, 64), 8, seed=0)
    rb = ol.ExactHead(ensemble, weights="uniform", classes=2)
    for day in (2, 0, 3, 1):
        rb.update(*days[day][0], task=day)
    right = [float((rb.predict(x).argmax(1) == y).double().mean()) for _, (x, y) in days]
    found = set()
    for path in (tmp_path / "runs").glob("*/cells/*.json"):
        found.add(tuple(json.loads(path.read_text())["cell"]["scores"]["probs"][-1]))
    assert found == {tuple(right)}
