"""Verdicts on the paper's claims, on cells whose truth is known by construction."""

import numpy as np
import pytest
from lab.tests.report.synthetic_cells import make_cell

from orderless_lab.paper import TABLE_1
from orderless_lab.report import load_run, summarize
from orderless_lab.report.claims import judge_claims

METHODS = list(TABLE_1["splitmnist"])


def with_scores(method, order, seed, final):
    cell = make_cell(method, order, seed)
    cell["scores"]["accuracy"][-1] = [float(value) for value in final]
    return cell


def built(write_cells, law, methods=METHODS, orders=10, seeds=3):
    """A run whose final scores are ``law(method, order, seed) -> [5]``."""
    return write_cells(
        [
            with_scores(name, order, seed, law(name, order, seed))
            for name in methods
            for order in range(orders)
            for seed in range(seeds)
        ]
    )


def verdict(summary, claim, measure):
    (found,) = [c for c in summary.claims if c.claim == claim and c.measure == measure]
    return found


def noise(*key, size=5):
    return np.random.default_rng([int.from_bytes(str(key).encode()[:16], "big")]).normal(size=size)


def the_papers_world(name, order, seed):
    mean = TABLE_1["splitmnist"][name][0]
    spread = 0.01 if name == "wpf" or name.endswith("+wpf") or name == "bootstrap" else 0.05
    return np.clip(mean + spread * noise(name, order, seed), 0, 1)


@pytest.mark.slow
def test_in_the_papers_world_all_its_claims_hold_but_the_one_its_table_contradicts(write_cells):
    (summary,) = summarize(built(write_cells, the_papers_world, orders=6))
    held = [c for c in summary.claims if c.holds is True]
    (failed,) = [c for c in summary.claims if c.holds is not True]
    assert len(held) == 17
    assert failed.claim == ("Weighted particle filter outperforms all other methods on SplitMNIST")
    assert failed.holds is False
    assert "lwf+wpf" in failed.evidence and "the opposite is seen" in failed.evidence


def test_less_seed_variance_lowers_the_total_variance_but_not_the_order_variance(write_cells):
    # WPF averages the initialisation away; the order does the same to both, up to a little noise.
    def law(name, order, seed):
        from_order = 0.04 * noise("order", order) + 0.002 * noise(name, order, seed)
        from_seed = 0.0 if name == "wpf" else 0.08 * noise(name, "seed", seed)
        return np.clip(0.6 + from_order + from_seed, 0, 1)

    # three seeds are too few for a verdict on the total variance
    (summary,) = summarize(built(write_cells, law, methods=["wpf", "gd"], seeds=8))
    claim = "Weighted particle filter has lower variance than Gradient descent"
    total, order = (verdict(summary, claim, f"{kind} variance") for kind in ("total", "order"))
    assert total.holds is True
    assert order.holds is False
    assert "no difference is shown" in order.evidence
    low, high = order.interval
    assert low < 0 < high
    assert total.paper == "0.002 against 0.032 (normalized)"


def test_two_seeds_do_not_decide_a_total_variance(write_cells):
    def law(name, order, seed):
        return np.full(5, 0.6) + (0.001 if name == "wpf" else 0.05) * noise(name, order)

    (summary,) = summarize(built(write_cells, law, methods=["wpf", "gd"], seeds=2))
    claim = "Weighted particle filter has lower variance than Gradient descent"
    total, order = (verdict(summary, claim, f"{kind} variance") for kind in ("total", "order"))
    assert order.holds is True
    assert total.holds == "not decidable"
    assert "share 2 seeds; a total variance needs 1 or at least 3" in total.evidence


def test_a_worse_method_is_reported_as_the_opposite_with_numbers(write_cells):
    def law(name, order, seed):
        return np.full(5, 0.6 if name == "wpf" else 0.7) + 0.01 * noise("order", order)

    (summary,) = summarize(built(write_cells, law, methods=["wpf", "gd"]))
    claim = verdict(summary, "Weighted particle filter is above Gradient descent", "average")
    assert claim.holds is False
    assert claim.difference == pytest.approx(-0.1)
    assert "-10.00 points [-10.00, -10.00]" in claim.evidence
    assert "3 seeds x 10 orders; the opposite is seen" in claim.evidence


def test_tuned_rows_are_judged_where_both_are_there(write_cells):
    def law(name, order, seed):
        return np.full(5, 0.7 if name == "ewc-tuned+wpf" else 0.6) + 0.01 * noise(name, order)

    names = ["ewc-tuned", "ewc-tuned+wpf", "si-tuned"]
    (summary,) = summarize(built(write_cells, law, methods=names))
    claim = verdict(summary, "EWC, tuned + WPF is above EWC, tuned", "average")
    assert claim.holds is True
    assert claim.paper == "76.8 % against 66.3 %"
    assert not [c for c in summary.claims if "SI, tuned" in c.claim]


def test_a_gain_that_hangs_on_the_seed_is_not_shown(write_cells):
    # Better by .1 with two seeds, worse by .05 with the third: sure over orders, not over seeds.
    def law(name, order, seed):
        gain = (0.1, 0.1, -0.05)[seed] if name == "wpf" else 0.0
        return np.full(5, 0.6 + gain) + 0.01 * noise("order", order)

    (summary,) = summarize(built(write_cells, law, methods=["wpf", "gd"]))
    claim = verdict(summary, "Weighted particle filter is above Gradient descent", "average")
    assert claim.holds is False
    # Student's, of three values: 5 +- 4.303 * 5
    assert "+5.00 points [-16.52, +26.52]" in claim.evidence
    assert "no difference is shown" in claim.evidence


def test_a_row_that_broke_off_decides_nothing(write_cells):
    cells = [
        {**with_scores(name, order, 0, np.full(5, mean)), "died_at": died}
        for name, mean, died in (("ewc", 0.5, 40), ("ewc+wpf", 0.6, None))
        for order in range(6)
    ]
    (summary,) = summarize(write_cells(cells))
    claim = verdict(summary, "EWC + WPF is above EWC", "average")
    assert claim.holds == "not decidable"
    assert "In 6 of 6 cells of ewc no particle kept a finite loss" in claim.evidence


def test_rounding_noise_is_no_finding(write_cells):
    # The same deviations around another mean: variances differ in the last bit only.
    def law(name, order, seed):
        return np.full(5, 0.6 if name == "wpf" else 0.7) + 0.1 * noise("order", order).clip(-1, 1)

    (summary,) = summarize(built(write_cells, law, methods=["wpf", "gd"]))
    claim = "Weighted particle filter has lower variance than Gradient descent"
    for measure in ("total variance", "order variance"):
        assert verdict(summary, claim, measure).holds is False
        assert "no difference" in verdict(summary, claim, measure).evidence


def test_few_orders_and_missing_rows_are_not_decidable(write_cells):
    directory = built(write_cells, the_papers_world, methods=["wpf", "gd"], orders=4)
    (summary,) = summarize(directory)
    assert {c.holds for c in summary.claims} == {"not decidable"}
    few = verdict(summary, "Weighted particle filter is above Gradient descent", "average")
    assert few.evidence == "wpf and gd share 4 orders; a verdict needs 5."
    missing = verdict(summary, "EWC + WPF is above EWC", "average")
    assert missing.evidence == "Not measured: ewc+wpf, ewc."


def test_being_best_of_the_rows_measured_is_no_proof_while_rows_are_missing(write_cells):
    (summary,) = summarize(built(write_cells, the_papers_world, methods=["wpf", "gd"]))
    best = summary.claims[-1]
    assert best.holds == "not decidable"
    assert "Not measured: averaging, bootstrap, ewc" in best.evidence
    # One better row is enough to refute it.
    (summary,) = summarize(built(write_cells, the_papers_world, methods=["wpf", "lwf+wpf"]))
    assert summary.claims[-1].holds is False


@pytest.mark.parametrize(("level", "holds"), [(0.52, True), (0.55, False), (0.46, False)])
def test_near_chance_means_within_three_points(write_cells, level, holds):
    directory = built(write_cells, lambda *_: np.full(5, level), methods=["bootstrap"])
    (summary,) = summarize(directory)
    claim = verdict(summary, "Baseline particle filter is near chance", "average")
    assert claim.holds is holds


def test_comparisons_use_only_the_cells_both_methods_have(write_cells):
    # gd lacks the orders in which wpf does badly: unpaired averages would give -.05.
    def law(name, order, seed):
        return np.full(5, 0.3 if order >= 5 and name == "wpf" else 0.6 + 0.1 * (name == "wpf"))

    cells = load_run(built(write_cells, law, methods=["wpf", "gd"])).cells
    kept = [c for c in cells if c.method == "wpf" or c.order_index < 5]
    (summary,) = summarize(built(write_cells, law, methods=["wpf", "gd"]))
    claim = judge_claims(summary, kept)[2]
    assert claim.claim == "Weighted particle filter is above Gradient descent"
    assert claim.difference == pytest.approx(0.1)
    assert "3 seeds x 5 orders" in claim.evidence


def test_other_benchmarks_have_no_claims(write_cells):
    cells = [make_cell("gd", order, 0, benchmark="mine") for order in range(6)]
    (summary,) = summarize(write_cells(cells))
    assert summary.claims == []


def test_gradient_descent_near_chance_is_judged_like_the_baseline(write_cells):
    (summary,) = summarize(built(write_cells, lambda name, *_: np.full(5, 0.79), ["gd"]))
    claim = verdict(summary, "Gradient descent is near chance", "average")
    assert claim.holds is False and "gd 79.0 % [79.0, 79.0], chance 50.0 %" in claim.evidence
    baseline = verdict(summary, "Baseline particle filter is near chance", "average")
    assert baseline.holds == "not decidable" and baseline.evidence == "Not measured: bootstrap."


FRONT = "The bottom right of Figure 2 belongs to rows with WPF"


def test_the_bottom_right_of_figure_2_is_its_pareto_front(write_cells):
    def law(name, order, seed):  # LwF is steadiest, LwF + WPF highest, the others beaten by both
        mean, spread = {"lwf": (0.7, 0.001), "lwf+wpf": (0.8, 0.02)}.get(name, (0.6, 0.05))
        return mean + spread * noise(name, order, seed)

    (summary,) = summarize(built(write_cells, law, orders=6))
    claim = verdict(summary, FRONT, "average and normalized variance")
    assert claim.holds is False
    assert "lwf+wpf (80." in claim.evidence and ", lwf (70." in claim.evidence
    assert claim.evidence.count("%") == 2


def test_a_front_of_some_rows_is_undecided(write_cells):
    (part,) = summarize(built(write_cells, the_papers_world, ["wpf", "lwf"]))
    claim = verdict(part, FRONT, "average and normalized variance")
    assert claim.holds == "not decidable" and "Not measured: averaging" in claim.evidence


def test_an_undefined_normalized_variance_is_not_the_lowest(write_cells):
    def law(name, order, seed):  # one row never has a right answer on the first task
        return the_papers_world(name, order, seed) * ([0, 1, 1, 1, 1] if name == "gd" else 1)

    (summary,) = summarize(built(write_cells, law, orders=6))
    claim = verdict(summary, FRONT, "average and normalized variance")
    assert claim.holds == "not decidable"
    assert claim.evidence == "No normalized variance, as the mean of a task is 0: gd."
