"""One cell: order and seeds, what is recorded, and a learner that breaks down."""

import json
import math

import pytest
import torch
from lab.tests.toys import (
    SETTINGS,
    STEPS,
    assert_same_networks,
    make_run,
    result_of,
    stop_after,
    tiny_cell,
    tiny_scenario,
)

from orderless import io as storage
from orderless_lab.methods.registry import METHODS, Method
from orderless_lab.runs import load_run
from orderless_lab.runs.store import as_json
from orderless_lab.runs.supervised import TRACES

ALL = ("wpf", "averaging", "bootstrap", "gd", "adam", "er", "joint")
ALL += ("ewc", "ewc+wpf", "lwf", "lwf+wpf", "si", "si+wpf")


def batches_seen(cell, folder):
    """What a learner was given, by task."""
    run = make_run(cell, folder)
    given: dict[int, list] = {}
    learn = run.learner.learn

    def listen(x, y, task=None):
        given.setdefault(run.learner.seen[-1], []).append((x.clone(), y.clone()))
        return learn(x, y, task)

    run.learner.learn = listen
    run.run()
    return given


def same_batches(ours, theirs):
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(ours, theirs, strict=True)
    )


# ------------------------------------------------------------------ order and seeds


def test_a_tasks_batches_are_the_same_in_every_order(tmp_path):
    natural = batches_seen(tiny_cell(order=(0, 1, 2)), tmp_path / "a")
    permuted = batches_seen(tiny_cell(order=(2, 0, 1), index=1), tmp_path / "b")
    assert [len(natural[t]) for t in range(3)] == list(STEPS)
    for task in range(3):
        assert same_batches(natural[task], permuted[task])


def test_a_method_that_builds_no_learner_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "mine", Method("mine", build=lambda setup: None))
    with pytest.raises(ValueError, match="the method 'mine' must build a learner, got NoneType"):
        make_run(tiny_cell("mine"), tmp_path)


def test_batch_seed_changes_batches_and_leaves_networks_alone(tmp_path):
    plain = make_run(tiny_cell(seed=1), tmp_path)
    fixed = make_run(tiny_cell(seed=1, batch_seed=0), tmp_path)
    assert_same_networks(plain.learner.filter.particles, fixed.learner.filter.particles)
    seed_0 = batches_seen(tiny_cell(seed=0), tmp_path / "a")
    seed_1 = batches_seen(tiny_cell(seed=1), tmp_path / "b")
    both = batches_seen(tiny_cell(seed=1, batch_seed=0), tmp_path / "c")
    assert same_batches(both[0], seed_0[0])
    assert not same_batches(seed_1[0], seed_0[0])


def test_the_order_seed_changes_neither_networks_nor_batches(tmp_path):
    one = batches_seen(tiny_cell(), tmp_path / "a")
    other = batches_seen(tiny_cell(order_seed=5), tmp_path / "b")
    assert all(same_batches(one[t], other[t]) for t in range(3))


@pytest.mark.parametrize("method", ALL)
def test_the_place_in_the_grid_changes_nothing(method, tmp_path):
    first = result_of(tiny_cell(method, index=0), tmp_path / "a")
    later = result_of(tiny_cell(method, index=3), tmp_path / "b")
    for key in ("scores", "nll", "ece", "predictions", "trace", "log_evidence", "plasticity"):
        assert first[key] == later[key], key


@pytest.mark.parametrize("method", ["gd", "adam"])
def test_a_rate_that_falls_is_divided_by_the_number_of_the_task(method, tmp_path):
    cell = tiny_cell(method, (2, 0, 1), schedule="1/task", adam_lr=0.01)
    given = batches_seen(cell, tmp_path / "plain")
    network = make_run(cell, tmp_path).learner.filter.networks[0]
    make = {"gd": torch.optim.SGD, "adam": torch.optim.Adam}[method]
    rate = {"gd": SETTINGS.lr, "adam": 0.01}[method]
    optimizer = make(network.parameters(), lr=rate)
    for place, task in enumerate(cell.order, start=1):
        optimizer.param_groups[0]["lr"] = rate / place
        for x, y in given[task]:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    with pytest.raises(KeyboardInterrupt):  # it falls in the same way after a stop
        result_of(cell, tmp_path, checkpoint_every=0.0, tick=stop_after(7))
    run = make_run(cell, tmp_path)
    run.run()
    learned = run.learner.filter.networks[0]
    for ours, plain in zip(learned.parameters(), network.parameters(), strict=True):
        assert torch.allclose(ours, plain, rtol=1e-5, atol=1e-6)  # float32


@pytest.mark.slow
@pytest.mark.parametrize("method", ["joint", "product", "bootstrap"])
def test_what_has_no_rate_or_no_places_does_not_fall(method, tmp_path):
    constant = result_of(tiny_cell(method), tmp_path / "a")
    falling = result_of(tiny_cell(method, schedule="1/task"), tmp_path / "b")
    assert falling["predictions"] == constant["predictions"]
    assert falling["nll"] == constant["nll"]


def test_permuting_the_order_permutes_what_does_not_forget(tmp_path):
    """Heads that share nothing with each other cannot tell in which order they were trained."""
    cells = [tiny_cell("gd", order, scenario="task", epochs=5) for order in ((0, 1, 2), (2, 1, 0))]
    runs = [make_run(cell, tmp_path / str(k)) for k, cell in enumerate(cells)]
    for run in runs:  # only the output layer learns
        for name, parameter in run.learner.filter.particles.named_parameters():
            parameter.requires_grad_(name.startswith("5."))
    ours, theirs = (run.run().scores["particles"] for run in runs)
    assert ours[-1] == theirs[-1]
    assert ours[1] != theirs[1]


# ------------------------------------------------------------------ the record


@pytest.mark.parametrize(
    ("method", "scenario"),
    [("wpf", "domain"), ("wpf", "task"), ("wpf", "class"), ("joint", "class"), ("ewc", "task")]
    + [("lwf+wpf", "class"), ("si", "domain"), ("exact", "class")],
)
def test_a_record_is_what_the_report_reads(method, scenario, tmp_path):
    result_of(tiny_cell(method, scenario=scenario), tmp_path)
    (path,) = (tmp_path / "cells").glob("*.json")

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    wrapper = json.loads(path.read_text(), parse_constant=refuse)
    (record,) = load_run(tmp_path).cells
    assert as_json(record) == wrapper["cell"]
    for rows in record.scores.values():
        assert len(rows) == 4 and all(len(row) == 3 for row in rows)
        assert all(0 <= value <= 1 for row in rows for value in row if value is not None)
    known = [all(v is not None for v in row) for row in record.scores["particles"]]
    assert known == ([True, False, False, True] if method == "joint" else [True] * 4)
    assert record.particles == (2 if method == "exact" else 3 if "wpf" in method else 1)
    assert record.died_at is None and record.alive == record.particles
    assert record.command == "the command" and record.duration > 0
    assert {"orderless", "torch"} <= set(record.versions)
    assert record.settings["lr"] == SETTINGS.lr


def test_row_0_is_the_untrained_network(tmp_path):
    run = make_run(tiny_cell("gd"), tmp_path)
    network, scenario = run.learner.filter.particles[0].eval(), tiny_scenario()
    expected = []
    for task in range(3):
        x, y = scenario.test_set(task)
        expected.append(float((network(x).argmax(-1) == y).double().mean()))
    assert run.run().scores["particles"][0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
def test_trace_steps_count_all_steps_though_tasks_differ_in_length(order, tmp_path):
    record = result_of(tiny_cell("wpf", order), tmp_path)
    assert record["trace"]["step"] == list(range(1, sum(STEPS) + 1))
    areas = record["plasticity"]["learning_curve_area"]
    losses, begin = record["trace"]["loss"], 0
    for place, task in enumerate(order):
        part = losses[begin : begin + STEPS[task]]
        assert areas[place] == pytest.approx(math.fsum(part) / len(part), rel=1e-12)
        begin += STEPS[task]


@pytest.mark.slow
def test_a_long_task_has_few_trace_points_and_its_last_step(tmp_path):
    steps = result_of(tiny_cell("gd", iterations=95), tmp_path)["trace"]["step"]
    assert steps == sorted(set(steps)) and len(steps) <= 3 * (TRACES + 1)
    assert {95, 190, 285} <= set(steps)


def test_joint_training_has_as_many_steps_as_the_tasks_together(tmp_path):
    record = result_of(tiny_cell("joint", iterations=4), tmp_path)
    assert record["trace"]["step"][-1] == 12
    assert len(record["plasticity"]["dormant"]) == 1


def test_snapshots_are_taken_of_one_cell_at_every_task(tmp_path):
    result_of(tiny_cell("wpf", (1, 0, 2)), tmp_path)
    result_of(tiny_cell("wpf", index=1), tmp_path)
    (path,) = (tmp_path / "snapshots").glob("*.st")
    arrays = storage.load(path)
    assert arrays["step"].tolist() == [0, 6, 9, 13]
    assert arrays["positions"].shape == (4, 3, 64) and arrays["log_weights"].shape == (4, 3)


# ------------------------------------------------------------------ breaking down


def test_a_penalty_too_strong_ends_learning_and_the_cell_says_when(tmp_path):
    run = make_run(tiny_cell("lwf", (0, 1, 2), lwf_strength=1e30), tmp_path)
    record = as_json(run.run())
    first = STEPS[0]
    assert first < record["died_at"] <= first + STEPS[1]
    assert record["trace"]["step"] == list(range(1, record["died_at"]))
    assert record["scores"]["particles"][-1] == record["scores"]["particles"][-2]
    network = run.learner.filter.particles[0].eval()  # frozen where it stood, and finite
    for task in range(3):
        x, y = run.tasks.test_set(task)
        right = float((network(x).argmax(-1) == y).double().mean())
        assert record["scores"]["particles"][-1][task] == pytest.approx(right, abs=1e-12)


def test_networks_that_overflow_leave_a_record_without_nan(tmp_path):
    """The first step throws the network to 1e30, the second finds no finite loss."""
    record = result_of(tiny_cell("gd", lr=1e30), tmp_path)
    json.dumps(record, allow_nan=False)
    assert record["died_at"] == 2
    assert record["nll"] == [None] * 3
    assert all(v is not None for v in record["scores"]["particles"][-1])


def test_a_death_unnoticed_on_the_device_is_in_the_checkpoint(tmp_path):
    """CUDA asks only now and then; a checkpoint must not forget what is still to be asked."""
    run = make_run(tiny_cell("gd"), tmp_path)
    run.progress.batch = 2
    run.learner.begin_task([0])
    run.learner.filter._failed.fill_(True)
    run._checkpoint()
    again = make_run(tiny_cell("gd"), tmp_path)
    again._resume()
    assert again.progress.died_at == 2


# ------------------------------------------------------------------ checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("method", [*ALL, "kept", "exact", "product"])
def test_a_cell_stopped_anywhere_ends_the_same(method, tmp_path):
    cell = tiny_cell(method, (1, 0, 2))
    whole = result_of(cell, tmp_path / "whole")
    for steps in (1, 4, 6, 7, 12):  # and each time it goes on from there
        with pytest.raises(KeyboardInterrupt):
            result_of(cell, tmp_path, checkpoint_every=0.0, tick=stop_after(steps))
    resumed = result_of(cell, tmp_path)
    for key in whole:
        if key != "duration":
            assert resumed[key] == whole[key], key


def test_a_checkpoint_of_other_versions_is_passed_over(tmp_path, monkeypatch):
    cell = tiny_cell("gd")
    with pytest.raises(KeyboardInterrupt):
        result_of(cell, tmp_path, checkpoint_every=0.0, tick=stop_after(5))
    ticks: list[int] = []
    monkeypatch.setattr("orderless_lab.runs.runner.versions", lambda: {"torch": "0.1"})
    newer = make_run(cell, tmp_path, tick=ticks.append)
    newer._resume()
    assert ticks == []


@pytest.mark.parametrize("method", ["gd", "wpf", "joint"])
def test_scoring_after_the_last_task_alone_leaves_the_result_as_it_is(method, tmp_path):
    each = result_of(tiny_cell(method), tmp_path / "each")
    last = result_of(tiny_cell(method, score_after="last"), tmp_path / "last")
    for name in ("particles", "logits", "probs"):
        assert last["scores"][name][-1] == each["scores"][name][-1]
        assert last["scores"][name][:-1] == 3 * [3 * [None]]
    for key in ("nll", "ece", "predictions", "trace"):
        assert last[key] == each[key]
    load_run(tmp_path / "last")
    assert not list((tmp_path / "last" / "snapshots").iterdir())
