"""The exact head in the harness."""

from dataclasses import replace

import pytest
import torch
from lab.tests.toys import make_run, result_of, tiny_cell, tiny_scenario, without_time

import orderless as ol
from orderless.features import DeadLeaves, RandomConvolution, RandomReLU
from orderless.filters.weights import normalize
from orderless_lab.methods import Setup, find_method
from orderless_lab.methods.learners import exact
from orderless_lab.methods.learners.exact import feature_map
from orderless_lab.report import summarize
from orderless_lab.runs import Grid, Store, run_grid
from orderless_lab.runs.store import as_json, read_cell
from orderless_lab.runs.supervised import score_task
from orderless_lab.suites import SplitMNIST, find_suite
from orderless_lab.suites import SupervisedSettings as Settings
from orderless_lab.suites.splitmnist import SplitMNISTSettings

SMALL = SplitMNISTSettings(
    source="embedded",
    batch_size=8,
    iterations=10,
    exact_features=32,
    exact_particles=3,
    exact_block=50,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "features", "orders", "seeds"), [("domain", "leaves", 2, 1), ("class", "relu", 4, 2)]
)
def test_the_order_variance_is_exactly_zero(kind, features, orders, seeds, tmp_path):
    settings = SMALL.changed(exact_map=features, exact_particles=2)
    run_grid(Grid("splitmnist", kind, "demo", ("exact",), orders, seeds, settings), Store(tmp_path))
    (summary,) = summarize(tmp_path)
    entry = summary.methods["exact"]
    assert (entry["orders"], entry["seeds"]) == (orders, seeds)
    assert entry["order_variance"] == entry["normalized_order_variance"] == 0
    assert entry["disagreement"] == 0
    assert (entry["seed_variance"] is not None) == (seeds > 1)
    records = [read_cell(path) for path in sorted(tmp_path.glob("cells/*seed0.json"))]
    for key in ("predictions", "nll", "ece", "log_evidence"):
        assert all(record[key] == records[0][key] for record in records)
    for record in records:
        for combine in ("particles", "logits", "probs"):
            assert record["scores"][combine][-1] == records[0]["scores"][combine][-1]


def test_a_cell_on_a_backbones_features_reads_them_everywhere(tmp_path, monkeypatch):
    """Training, scores and plasticity: the images have 196 values, the features 14."""
    monkeypatch.setattr(exact, "backbone_features", lambda kind: lambda x: x.mean(3).flatten(1))
    cell = tiny_cell("exact", scenario="class")
    cell = replace(cell, settings=cell.settings.changed(exact_map="lite2"))
    record = result_of(cell, tmp_path)
    assert sum(record["scores"]["probs"][-1]) / 3 > 0.5
    assert len(record["plasticity"]["effective_rank"]) == 3


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
def test_it_learns_in_every_scenario_and_has_a_trace_for_every_task(kind, tmp_path):
    record = result_of(tiny_cell("exact", scenario=kind), tmp_path)
    assert record["moved"] == 0
    assert record["particles"] == 2
    chance = 1 / 6 if kind == "class" else 1 / 2
    assert sum(record["scores"]["probs"][-1]) / 3 > 1.1 * chance
    trace = record["trace"]
    assert len(trace["step"]) == len(trace["ess"]) == len(trace["loss"]) == 3
    assert all(1 <= ess <= 2 for ess in trace["ess"])
    assert trace["step"] == sorted(trace["step"])


def test_the_trace_shows_evidence_weights_and_answers_use_the_chosen_ones(tmp_path):
    run = make_run(tiny_cell("exact"), tmp_path)
    record = as_json(run.run(""))
    evidence = normalize(run.learner.filter.particle_log_evidence)[0].exp()
    assert record["trace"]["largest_weight"][-1] == evidence.max().item()
    assert torch.equal(run.learner.weights, torch.full((2,), 0.5, dtype=torch.float64))
    by_evidence = make_run(tiny_cell("exact", exact_weights="evidence"), tmp_path / "evidence")
    by_evidence.run("")
    assert torch.equal(by_evidence.learner.weights, evidence)


def test_how_many_samples_are_gathered_changes_no_digit(tmp_path):
    records = [
        without_time(result_of(tiny_cell("exact", exact_block=block), tmp_path / str(block)))
        for block in (1, 5, 4096)
    ]
    for record in records:
        del record["settings"]
    assert records[0] == records[1] == records[2]


def test_in_the_task_setting_only_the_tasks_own_classes_are_possible():
    scenario = tiny_scenario("task")
    setup = Setup(
        scenario, Settings(exact_map="relu", exact_features=8, exact_particles=2), lambda: None, 0
    )
    learner = find_method("exact").build(setup)
    learner.begin_task([1])
    learner.learn(*scenario.train_set(1))
    x = scenario.test_set(1)[0]
    for task in (0, 1, 2):
        outputs = learner.outputs(x, task)
        assert outputs.shape == (2, 20, 6)
        possible = outputs.isfinite().all(0).all(0).nonzero().flatten().tolist()
        assert possible == [2 * task, 2 * task + 1]
    assert (learner.outputs(x, 0)[..., :2] == 0).all()  # never seen: both equally likely


@pytest.mark.slow
def test_the_demo_settings_reach_92_percent_on_the_embedded_digits():
    suite = find_suite("splitmnist")
    settings = suite.preset("demo").settings.changed(exact_particles=3)
    scenario = SplitMNIST("domain", source="embedded")
    network = suite.network(scenario, settings)
    learner = find_method("exact").build(Setup(scenario, settings, network, 0))
    for position in range(5):
        learner.begin_task(range(position + 1))
        for x, y in scenario.batches(position, batch_size=8, seed=0):
            learner.learn(x, y)
    scores = [score_task(learner, task, 1000).correct["particles"] for task in range(5)]
    assert sum(scores) / 5 >= 0.92


@pytest.mark.slow
def test_images_get_features_of_dead_leaves_and_all_else_gets_relu():
    colour, digits = feature_map("auto", (3, 32, 32), 64)(), feature_map("auto", (1, 28, 28), 64)()
    assert isinstance(colour, DeadLeaves) and isinstance(digits, DeadLeaves)
    assert colour.mirror and not digits.mirror
    assert colour.out_features == digits.out_features == 64
    assert isinstance(feature_map("auto", (7,), 30)(), RandomReLU)
    assert isinstance(feature_map("auto", (1, 8, 8), 64)(), RandomReLU)  # no room for patches
    assert isinstance(feature_map("relu", (3, 32, 32), 30)(), RandomReLU)
    assert isinstance(feature_map("convolution", (3, 32, 32), 64)(), RandomConvolution)
    with pytest.raises(ValueError, match="multiple of 8 with exact_map=leaves"):
        feature_map("auto", (3, 32, 32), 30)
    with pytest.raises(ValueError, match=r"square images, got inputs of shape \(7,\)"):
        feature_map("leaves", (7,), 32)


def test_the_exact_filter_sees_images_as_they_are_whatever_the_others_see():
    scenario = tiny_scenario()
    scenario.augment = lambda x, generator: x + 1.0
    settings = Settings(exact_map="relu", exact_features=8)
    learner = find_method("exact").build(Setup(scenario, settings, lambda: None, 0))
    plain = {tuple(row) for row in scenario.tasks[0].x.flatten(1).tolist()}
    for x, _ in learner.scenario.batches(0, batch_size=4, seed=0):
        assert {tuple(row) for row in x.flatten(1).tolist()} <= plain
    x, _ = next(iter(scenario.batches(0, batch_size=4, seed=0)))  # the others' still is
    assert not {tuple(row) for row in x.flatten(1).tolist()} & plain


def test_a_column_per_label_needs_no_task(tmp_path):
    """It is the head that learns all samples in one go and never hears of tasks."""
    run = make_run(tiny_cell("exact", exact_columns="label", batch_size=4), tmp_path)
    record = as_json(run.run())
    head = run.learner.filter
    assert len(head.columns) == 2
    assert len(make_run(tiny_cell("exact"), tmp_path / "task").learner.filter.columns) == 0
    whole = ol.ExactHead(head.particles, classes=2)
    for x, y in (run.tasks.train_set(task) for task in range(2)):
        whole.update(x, y)  # tasks 0 and 1 are whole batches
    for task in (0, 1):
        head.forget(*run.tasks.train_set(task))
        head.update(*run.tasks.train_set(task))
    assert head.samples >= whole.samples and record["method"] == "exact"
