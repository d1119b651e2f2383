"""Returns in games: tables without percentages, Table 2 beside the paper's, figure 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from orderless import metrics
from orderless_lab.experiments.record import load_run
from orderless_lab.report import summarize
from orderless_lab.report.page import page_data
from orderless_lab.report.tables import format_table
from orderless_lab.storage.typed import as_json

LEVELS = 3
SETTINGS = {"levels": "0-2", "steps_per_level": 1000, "particles": 8, "transitions": 500}
SETTINGS |= {"epochs": 1, "optimizer": "adam", "lr": 1e-3, "adam_lr": 5e-4}

MEASURED = {
    "expert": {"mean": 0.61, "standard_error": 0.02, "episodes": 256},
    "random": {"mean": -0.03, "standard_error": 0.01, "episodes": 256},
}
EXPERT = {"network": "impala", "digest": "abc", "steps": 5_000_000, "levels": 200}
EXPERT |= {"returns": {"training": MEASURED, "held_out": MEASURED}}
EXPERT |= {"level_returns": [0.7, None, 0.5]}
CLONED = {"expert": EXPERT, "scoring_duration": 4.0}


def returns_of(method: str, order_index: int) -> list[float]:
    """By level; under a filter they are higher and move less."""
    noise = np.random.default_rng([order_index, len(method)]).normal(size=LEVELS)
    mean, spread = (0.4, 0.01) if method.endswith("+wpf") else (0.2, 0.05)
    return (mean + spread * noise + 0.05 * np.arange(LEVELS)).tolist()


def make_cell(method: str, order_index: int, benchmark: str, game: str) -> dict[str, Any]:
    order = [(order_index + place) % LEVELS for place in range(LEVELS)]
    cell = {
        "benchmark": benchmark,
        "scenario": game,
        "preset": "gpu",
        "method": method,
        "order_index": order_index,
        "order": order,
        "seed": 0,
        "score_kind": "return",
        "task_names": ["level 0", "level 1", "level 2"],
        "particles": 8 if "+" in method else 1,
        "settings": SETTINGS,
        "scores": {"accuracy": [[None] * LEVELS] * LEVELS + [returns_of(method, order_index)]},
        "curves": {"step": [500.0, 1500.0, 2500.0], "return": [0.1, None, 0.3]},
        "trace": {"step": [1], "ess": [3.0], "largest_weight": [0.5], "loss": [1.0]},
        "died_at": None,
        "duration": 10.0,
        "command": f"orderless run {benchmark} --game {game}",
    }
    return cell | CLONED if benchmark == "procgen-bc" else cell


def test_tables_show_returns_as_they_are(write_cells: Any) -> None:
    cells = [make_cell("ppo", order, "procgen-lifelong", "starpilot") for order in range(3)]
    (summary,) = summarize(write_cells(cells))
    average = np.mean([returns_of("ppo", order) for order in range(3)])
    text = format_table(summary, "markdown")
    assert f"| {average:.3f} |" in text and "norm." not in text and "logits" not in text
    averages = [np.mean(returns_of("ppo", order)) for order in range(3)]
    assert f"{min(averages):.3f} to {max(averages):.3f}" in text
    assert "starpilot, gpu, learning rate 0.0005" in text
    assert summary.methods["ppo"].forgetting is None


def test_three_orders_judge_a_mean_by_students_interval_and_no_variance(write_cells: Any) -> None:
    methods = ("ppo", "ppo+wpf")
    cells = [make_cell(m, o, "procgen-lifelong", "starpilot") for m in methods for o in range(3)]
    (summary,) = summarize(write_cells(cells))
    claims = {(c.claim, c.measure): c for c in summary.claims}
    mean = claims["PPO + WPF is above PPO", "average"]
    ours, theirs = (
        [np.mean(returns_of(method, order)) for order in range(3)] for method in ("ppo+wpf", "ppo")
    )
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert mean.interval == pytest.approx([interval.low, interval.high], rel=1e-3)
    assert mean.holds is True and mean.paper == "0.55 against 0.38"
    assert "%" not in mean.evidence and "points" not in mean.evidence
    for measure in ("total variance", "order variance"):
        claim = claims["PPO + WPF has lower variance than PPO", measure]
        assert claim.holds == "not decidable" and "a verdict needs 5" in claim.evidence
    missing = claims["PPO + WPF is above PPO + EWC", "average"]
    assert missing.holds == "not decidable" and "ppo+ewc" in missing.evidence


def test_with_enough_orders_a_variance_is_judged(write_cells: Any) -> None:
    methods = ("bc", "bc+wpf")
    cells = [make_cell(m, o, "procgen-bc", "dodgeball") for m in methods for o in range(8)]
    (summary,) = summarize(write_cells(cells))
    verdicts = {c.measure: c.holds for c in summary.claims if "averaging" not in c.claim
                and "baseline" not in c.claim}  # fmt: skip
    assert verdicts == {"average": True, "total variance": True, "order variance": True}


def test_places_of_the_order_and_what_moved_the_weights(write_cells: Any, tmp_path: Path) -> None:
    cells = [make_cell("ppo+wpf", order, "procgen-lifelong", "starpilot") for order in range(3)]
    for cell, lowest in zip(cells, (0.0, 1.0, 5.0), strict=True):
        # two updates on each of three levels, the last one at the end of its level
        cell["trace"] = {"step": [512, 1024, 1536, 2048, 2560, 3072]}
        cell["trace"] |= dict.fromkeys(("ess", "largest_weight", "loss"), [1.0] * 6)
        cell["trace"]["log_weight_policy"] = [lowest + value for value in (1, 3, 10, 20, 100, 300)]
        cell["trace"]["log_weight_value"] = [0.0] * 6
    (summary,) = summarize(write_cells(cells))
    entry = summary.methods["ppo+wpf"]
    returns = [returns_of("ppo+wpf", order) for order in range(3)]
    by_place = [
        np.mean([returns[o][(o + place) % LEVELS] for o in range(3)]) for place in range(LEVELS)
    ]
    assert entry.place_averages == pytest.approx(by_place)
    assert entry.weight_spread == {"policy": pytest.approx([4.0, 17.0, 202.0])}


def test_with_the_level_as_a_random_effect_it_says_which_effects_are_excluded(
    write_cells: Any,
) -> None:
    methods = ("ppo", "ppo+wpf")
    cells = [make_cell(m, o, "procgen-lifelong", "starpilot") for m in methods for o in range(3)]
    (summary,) = summarize(write_cells(cells))
    (claim,) = [c for c in summary.claims if c.claim == "PPO + WPF is above PPO" and c.across]
    ours, theirs = ([[returns_of(m, o) for o in range(3)]] for m in ("ppo+wpf", "ppo"))
    found = metrics.difference_across(ours, theirs)
    assert claim.across == pytest.approx([found.low, found.high])
    half = (found.high - found.low) / 2
    paper = 0.55 - 0.38
    excluded = "is not excluded" if abs(paper - found.value) <= half else "is excluded"
    words = f"half-width {half:.3f}; an effect of the paper's size, +0.17, {excluded}."
    assert words in claim.evidence


@pytest.mark.slow
def test_plasticity_is_told_by_place_and_judged_late_in_the_order(write_cells: Any) -> None:
    dormant = {"ppo": [0.2, 0.5, 0.9], "ppo+averaging": [0.2, 0.4, 0.5], "ppo+wpf": [0.2, 0.5, 0.5]}
    cells = []
    for method, values in dormant.items():
        for order in range(3):
            cell = make_cell(method, order, "procgen-lifelong", "starpilot")
            moved = [value + 0.01 * order * (1 + len(method)) for value in values]
            cells.append(cell | {"plasticity": {"dormant": moved}})
    run = load_run(write_cells(cells))
    (summary,) = summarize(run)
    entry = summary.methods["ppo+wpf"]
    assert entry.plasticity["return"] == pytest.approx(entry.place_averages)
    last = [0.5 + 0.01 * order * 8 for order in range(3)]
    expected = stats.ttest_1samp(last, 0).confidence_interval()
    mean, half = entry.plasticity["dormant"][2], entry.plasticity_half["dormant"][2]
    assert (mean - half, mean + half) == pytest.approx(tuple(expected), abs=1e-4)
    claims = {(c.claim, c.measure.partition(",")[0]): c for c in summary.claims}
    keeps = "PPO + WPF keeps more plasticity than PPO"
    assert claims[keeps, "dormant units"].holds is True  # 0.5 against 0.9
    assert claims[keeps, "area under a level's curve"].holds is True
    assert claims[f"{keeps} + averaging", "dormant units"].holds is False
    assert "no difference is shown" in claims[f"{keeps} + averaging", "dormant units"].evidence
    assert claims[keeps, "effective rank"].evidence == "Not recorded: effective_rank."
    page = page_data(run, [summary])
    assert page.results[0].values["plasticity-dormant"]["unit"] == "place"
    assert page.results[0].values["plasticity-dormant"]["steps"] == [1, 2, 3]
    assert {"plasticity-dormant-wide", "plasticity-return-narrow"} <= page.charts[0].keys()
    assert "plasticity-effective_rank-wide" not in page.charts[0]


def test_seeds_of_one_order_are_not_independent_runs(write_cells: Any) -> None:
    """Three seeds that say the same leave the interval of plasticity as wide as one does."""
    found, bands = [], []
    for seeds in (1, 3):
        cells = [
            make_cell(method, order, "procgen-lifelong", "starpilot")
            | {"seed": seed, "plasticity": {"dormant": [0.5, level + order * slope]}}
            for method, level, slope in (("ppo", 0.6, 0.1), ("ppo+wpf", 0.5, 0.02))
            for order in range(3)
            for seed in range(seeds)
        ]
        (summary,) = summarize(load_run(write_cells(cells)))
        [claim] = [
            c
            for c in summary.claims
            if "than PPO" in c.claim and "dormant" in c.measure and c.interval
        ]
        found.append(claim.interval)
        bands.append(summary.methods["ppo"].plasticity_half["dormant"])
    assert found[1] == pytest.approx(found[0])
    assert bands[1] == pytest.approx(bands[0])
    expected = stats.ttest_1samp([0.6, 0.7, 0.8], 0).confidence_interval()
    assert bands[0] == pytest.approx([0.0, (expected.high - expected.low) / 2], abs=1e-4)


def test_clones_are_measured_from_random_play_to_the_expert(write_cells: Any) -> None:
    cells = [make_cell("bc", order, "procgen-bc", "fruitbot") for order in range(3)]
    for cell in cells:
        rows = np.full((LEVELS + 1, LEVELS), 0.1)  # untrained 0.1, just learned 0.4, at the end 0.2
        rows[-1] = 0.2
        for place, level in enumerate(cell["order"], start=1):
            rows[place, level] = 0.4
        cell["scores"] = {"accuracy": rows.tolist()}
        cell["expert"] = EXPERT | {"level_returns": [0.6, 0.5, 0.4]}
    (summary,) = summarize(write_cells(cells))
    entry = summary.methods["bc"]
    assert summary.random_return == pytest.approx(0.1)
    assert entry.just_learned == pytest.approx((0.4 + 0.4 + 0.4) / 3)
    assert summary.of_expert(0.1) == pytest.approx(0) and summary.of_expert(0.5) == pytest.approx(1)
    text = format_table(summary, "markdown")
    assert "of expert" in text and "just learned" in text and "| 75.0 |" in text


def test_an_expert_that_plays_at_random_is_no_scale(write_cells: Any) -> None:
    cell = make_cell("bc", 0, "procgen-bc", "fruitbot")
    cell["scores"] = {"accuracy": [[0.0] * LEVELS] * (LEVELS + 1)}
    cell["expert"] = EXPERT | {"level_returns": [0.0] * LEVELS}
    (summary,) = summarize(write_cells([cell]))
    assert summary.of_expert(0.1) is None
    assert "of expert" not in format_table(summary, "markdown")


def test_clones_of_two_experts_are_told_apart(write_cells: Any) -> None:
    cells = [make_cell("bc", order, "procgen-bc", "fruitbot") for order in range(3)]
    (summary,) = summarize(write_cells(cells))
    assert as_json(summary.expert) == EXPERT and not any("expert" in note for note in summary.notes)
    cells[1]["expert"] = EXPERT | {"digest": "def"}
    (summary,) = summarize(write_cells(cells))
    assert summary.expert is None
    assert "The cells do not all clone the same expert." in summary.notes
