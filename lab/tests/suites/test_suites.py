"""The suites: what their settings mean, and that an outline is what the tasks are."""

import re
from pathlib import Path

import pytest
import torch
from lab.tests.toys import write_tiny_cifar100
from tests.cli.commands import run
from typer.testing import CliRunner

from orderless.cli.main import app
from orderless_lab.methods import METHODS
from orderless_lab.runs import Store
from orderless_lab.suites import BENCHMARKS, SUITES, find_suite

PAGE = Path(__file__).parents[3] / "docs" / "your-own-benchmark.md"


def images(batch):
    return {image.numpy().tobytes() for image in batch}


@pytest.mark.parametrize(("setting", "augmented"), [("flip-crop", True), ("none", False)])
def test_cifar_images_are_augmented_unless_told_otherwise(
    setting, augmented, tmp_path, monkeypatch
):
    write_tiny_cifar100(tmp_path, monkeypatch)
    suite = find_suite("splitcifar100")
    scenario = suite.load("domain", suite.settings(augment=setting), 0, str(tmp_path), "cpu")
    stored = images(scenario.train_set(0)[0])
    ((drawn, _),) = scenario.batches(0, batch_size=20, seed=0)
    assert (images(drawn) != stored) is augmented


@pytest.mark.parametrize("variant", ["domain", "task", "class"])
@pytest.mark.parametrize("name", ["splitmnist", "splitcifar100"])
def test_an_outline_is_what_the_tasks_are(name, variant, tmp_path, monkeypatch):
    write_tiny_cifar100(tmp_path, monkeypatch)
    suite = find_suite(name)
    small = {"source": "embedded"} if name == "splitmnist" else {}
    settings = suite.settings(hidden=4, **small)
    known = suite.outline(variant, settings)
    scenario = suite.load(variant, settings, 0, str(tmp_path), "cpu")
    assert len(known) == len(scenario)
    assert (known.input_shape, known.outputs) == (scenario.input_shape, scenario.outputs)
    x = scenario.test_set(0)[0][:2]
    assert suite.network(known, settings)().eval()(x).shape == (2, scenario.outputs)


def test_tasks_that_were_loaded_last_are_kept():
    suite = find_suite("splitmnist")
    settings = suite.settings(source="embedded")
    first = suite.tasks("domain", settings, 0, None, "cpu")
    assert suite.tasks("domain", settings, 1, None, "cpu") is first
    other = settings.changed(assign="random")
    assert suite.tasks("domain", other, 1, None, "cpu") is not first


@pytest.mark.parametrize("name", [name for name in SUITES if name != "tiny"])
def test_every_suite_has_a_demo_and_methods(name):
    suite = find_suite(name)
    assert suite.preset("demo").settings.particles <= 8
    assert suite.usual_method in suite.family and set(suite.family) <= set(METHODS)
    with pytest.raises(ValueError, match=r"unknown preset 'demos' of .* .did you mean 'demo'"):
        suite.preset("demos")


def test_a_benchmark_is_one_file_and_one_registration(tmp_path, monkeypatch):
    """The page's example: scikit-learn's digits as five tasks."""
    (text,) = re.findall(r"```python title=\"my_suite.py\"\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in text.splitlines() if line.strip()]) < 40
    (tmp_path / "my_suite.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = (
        "run digits --plugin my_suite --preset own --methods gd,exact --permutations 1 --out x"
    )
    try:
        said = run(*command.split(), "--workers", "1").stdout
        assert "2 cells computed" in said and "Digits" in said
        found = {r["method"]: r["scores"]["particles"] for r in Store("x").finished().values()}
        # each image is in one task: those of scikit-learn, and labels of their own in each
        suite = find_suite("digits")
        scenario = suite.load("domain", suite.settings(), 0, None, "cpu")
        assert sum(len(t.x) + len(t.x_test) for t in scenario.tasks) == 1797
        assert [t.y.unique().tolist() for t in scenario.tasks] == [[0, 1]] * 5
        assert torch.tensor(found["exact"][-1]).mean() > 0.95
        just_learned = [found["gd"][task + 1][task] for task in range(5)]
        assert min(just_learned) > 0.9  # the preset `own` learns
    finally:
        SUITES.pop("digits", None)


def test_a_benchmark_of_the_lab_is_registered_and_named_in_the_help_by_one_line():
    assert {name: SUITES[name].name for name in BENCHMARKS} == {name: name for name in BENCHMARKS}
    said = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).stdout
    assert all(name in said for name in BENCHMARKS)
