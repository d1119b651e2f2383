"""The audit calls learners what they are."""

from __future__ import annotations

import itertools
import json
import math
import random

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.audit.toys import Guess, LastTask, Mute, Sums, make_sgd, toy_tasks

import orderless as ol
from orderless.audit import LearnerAudit


def audit(make_learner, orders: int = 5, seeds: int = 3, **options) -> ol.audit.OrderSensitivity:
    options = {"name": "mine", "orders": orders, "seeds": seeds, **options}
    return ol.order_sensitivity(make_learner, toy_tasks(), **options)


def synthetic(scores: np.ndarray) -> LearnerAudit:
    orders = scores.shape[1]
    return LearnerAudit("mine", scores[:, :, None], np.zeros((orders, orders)), 0.0, False, False)


# --- what is claimed -----------------------------------------------------------------------------


def digit_pairs() -> list[ol.Task]:
    """Scikit-learn's digits in five tasks of two; the tasks share one pair of outputs."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    tasks = []
    for first in range(0, 10, 2):
        rows = torch.nonzero((y == first) | (y == first + 1))[:, 0]
        train, test = rows[::2], rows[1::2]
        labels = y - first
        name = f"{first}v{first + 1}"
        tasks.append(ol.Task(x[train], labels[train], x[test], labels[test], name))
    return tasks


@pytest.mark.slow
def test_fast_sgd_on_digits_is_sensitive_and_the_exact_head_has_no_order_variance_at_all() -> None:
    make_learner = ol.audit.from_torch(
        lambda: torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
        ),
        lambda parameters: torch.optim.SGD(parameters, lr=0.3),
        batch_size=16,
        epochs=4,
    )
    exact = ol.audit.from_partial_fit(lambda seed: ol.ExactClassifier(random_state=seed), classes=2)
    result = ol.order_sensitivity(
        make_learner, digit_pairs(), orders=5, seeds=2, compare={"exact": exact}
    )
    learner, exact = result.learner, result["exact"]
    assert result.sensitive and learner.p_value <= 0.05
    assert learner.order_variance > 5 * learner.seed_variance
    assert exact.order_variance == 0.0 and exact.verdict == "none"
    assert exact.mean_disagreement == 0.0 and exact.seed_variance > 0
    assert exact.parts.average > 0.85
    assert result.tasks == ("0v1", "2v3", "4v5", "6v7", "8v9")


@pytest.mark.slow
def test_a_learner_that_forgets_is_sensitive_and_the_last_task_does_best() -> None:
    result = audit(make_sgd())
    assert result.learner.verdict == "sensitive"
    worst = result.learner.worst_order
    assert result.learner.order_averages[worst] == min(result.learner.order_averages)
    task = result.learner.suffering_task
    order = result.orders[int(result.learner.scores[:, :, task].mean(axis=0).argmax())]
    assert order[-1] == task or order[-2] == task


@pytest.mark.slow
def test_guessing_is_not_called_sensitive() -> None:
    verdicts = [audit(Guess).learner.verdict for _ in range(20)]
    # The test alone errs once in twenty; four or more errors in twenty have probability 0.02
    assert verdicts.count("sensitive") <= 3
    assert verdicts.count("not shown") >= 15


def test_a_learner_that_ignores_its_seed_is_found_out_and_compared_with_nothing() -> None:
    result = audit(LastTask)
    assert result.learner.ignores_seed and result.learner.p_value is None
    assert result.sensitive and result.learner.seed_variance == 0.0
    assert "ignores `seed`" in str(result) and "compared with 0" in str(result)


def test_the_same_bits_in_every_order_are_no_dependence_at_all() -> None:
    result = audit(Sums)
    assert result.learner.verdict == "none" and result.learner.order_variance == 0.0
    assert "does not depend on the order" in str(result)


def test_an_order_effect_below_that_of_the_seed_is_not_called_sensitive() -> None:
    generator = np.random.default_rng(0)
    orders, seeds = generator.normal(size=(1, 10, 4)), generator.normal(size=(3, 1, 4))
    noise = generator.normal(size=(3, 10, 4))
    learner = synthetic(0.5 + 0.01 * orders + 0.1 * seeds + 0.001 * noise)
    assert learner.p_value is not None and learner.p_value < 0.001
    assert learner.verdict == "below reseeding" and not learner.sensitive
    assert synthetic(0.5 + 0.1 * orders + 0.01 * seeds + 0.001 * noise).sensitive


def test_too_few_runs_decide_nothing() -> None:
    result = audit(make_sgd(), orders=3, seeds=2)
    assert result.learner.verdict == "undecided" and "use more" in str(result)


def test_a_learner_at_chance_is_told_so_with_the_chance_level() -> None:
    class Constant(LastTask):
        def predict(self, x):
            return np.ones(len(x), dtype=int)

    result = audit(Constant)
    shares = [task.y_test.double().mean().item() for task in toy_tasks()]
    assert result.chance == pytest.approx(max(np.mean(shares), 1 - np.mean(shares)))
    assert "mine is not clearly above chance" in str(result) and "not meaningful" in str(result)
    assert f"the best constant answer has {100 * result.chance:.1f}" in str(result)
    # learned, and lost again: the tasks of the toys contradict each other
    forgetting = audit(LastTask)
    assert forgetting.learner.just_learned(forgetting.orders) > 0.8
    assert "not meaningful" not in str(forgetting)


@pytest.mark.slow
def test_a_predict_that_changes_the_learner_is_found_out() -> None:
    class Drifting(LastTask):
        """Learning undoes what predicting did: only asking twice tells."""

        def predict(self, x):
            self.means = self.means + 0.05
            return super().predict(x)

    class Training(LastTask):
        """Answers repeat, but what is learned later depends on what was asked."""

        asked = 0

        def learn(self, x, y, task=None):
            super().learn(x, y)
            self.means = self.means + 0.01 * self.asked

        def predict(self, x):
            self.asked += 1
            return super().predict(x)

    for each in (Drifting, Training):
        result = audit(each)
        assert result.learner.changed_by_predict
        assert "`predict` changes it" in str(result)
    assert not audit(LastTask).learner.changed_by_predict


@pytest.mark.slow
def test_a_regression_is_scored_by_r_squared() -> None:
    from sklearn.linear_model import SGDRegressor
    from sklearn.metrics import r2_score

    generator = torch.Generator().manual_seed(0)
    tasks = []
    for t in range(3):
        x = torch.randn(160, 3, generator=generator)
        y = 50 + 10 * (x[:, t] + 0.1 * torch.randn(160, generator=generator))
        tasks.append(ol.Task(x[:80], y[:80], x[80:], y[80:], name=f"day {t}"))

    def make_estimator(seed: int) -> SGDRegressor:
        return SGDRegressor(random_state=seed, learning_rate="constant", eta0=0.05)

    make_learner = ol.audit.from_partial_fit(make_estimator, batch_size=8, epochs=2)
    result = ol.order_sensitivity(make_learner, tasks, orders=6)
    alone = make_learner(0)
    for task in result.orders[3]:
        alone.learn(tasks[task].x, tasks[task].y, task=task)
    expected = [max(-1, r2_score(t.y_test, alone.predict(t.x_test))) for t in tasks]
    assert result.learner.scores[0, 3] == pytest.approx(expected)
    assert result.score == "R^2" and result.chance <= 0
    assert result.sensitive and "R^2" in str(result) and "standard deviation apart" in str(result)
    alone = make_learner(0)  # one number a sample
    alone.learn(tasks[0].x[:, 0], tasks[0].y, task=0)
    assert alone.predict(tasks[0].x_test[:, 0]).shape == (80,)
    single = [ol.Task(t.x, t.y, t.x_test[:1], t.y_test[:1], t.name) for t in tasks]
    with pytest.raises(ValueError, match="test values that differ, got equal ones in 'day 0'"):
        ol.order_sensitivity(make_learner, single)


# --- fair runs -----------------------------------------------------------------------------------


def test_only_the_order_differs_between_the_runs_of_a_seed() -> None:
    starts: dict[int, list[torch.Tensor]] = {}
    batches: dict[tuple[int, int], list[torch.Tensor]] = {}

    class Watched(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                batches.setdefault(current, []).append(x.clone())
            return super().forward(x)

    make = ol.audit.from_torch(
        lambda: Watched(2, 2), lambda p: torch.optim.SGD(p, lr=0.1), batch_size=4
    )

    def make_learner(seed: int):
        learner = make(seed)
        starts.setdefault(seed, []).append(learner.module.weight.detach().clone())
        learn = learner.learn

        def watched(x, y, task=None):
            nonlocal current
            current = seed, task
            learn(x, y, task=task)

        learner.learn = watched
        return learner

    current = 0, 0
    audit(make_learner, orders=2, seeds=2)
    assert [len(weights) for weights in starts.values()] == [3, 2]  # one is asked at the end alone
    for first, *others in starts.values():
        assert all(torch.equal(first, other) for other in others)
    assert not torch.equal(starts[0][0], starts[1][0])
    for seen in batches.values():  # both orders of a seed: the same batches of a task
        first, *others = torch.stack(seen).split(6)
        assert others and all(torch.equal(first, other) for other in others)


def test_a_learner_that_works_in_place_cannot_change_the_next_run() -> None:
    class Careless(LastTask):
        def learn(self, x, y, task=None):
            super().learn(x, y)
            x.mul_(-5)
            y.zero_()

        def predict(self, x):
            result = super().predict(x)
            x.zero_()
            return result

    tasks = toy_tasks()
    careless, careful = (
        ol.order_sensitivity(make, tasks, orders=3, seeds=2).learner.scores
        for make in (Careless, LastTask)
    )
    assert np.array_equal(careless, careful)


def test_global_generators_are_set_by_the_seed_and_left_as_they_were() -> None:
    drawn: list[tuple[float, float, float]] = []

    class Drawing(LastTask):
        def learn(self, x, y, task=None):
            super().learn(x, y)
            drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))

    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    audit(Drawing, orders=2, seeds=2)
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    runs = [drawn[4 * r : 4 * r + 4] for r in range(5)]  # the first learner is made twice
    assert runs[0] == runs[1] == runs[2] != runs[3] == runs[4]


# --- predictions ---------------------------------------------------------------------------------


def test_labels_and_scores_tensors_and_arrays_are_the_same_to_the_audit() -> None:
    class AsLabels(LastTask):
        def predict(self, x):
            return super().predict(x).argmax(1).numpy().astype(np.float32)

    scores, labels = audit(LastTask).learner, audit(AsLabels).learner
    assert np.array_equal(scores.scores, labels.scores)
    assert np.array_equal(scores.disagreement, labels.disagreement)


def test_disagreement_is_the_share_of_samples_with_other_labels() -> None:
    result = audit(LastTask, orders=4)
    pairs = result.learner.disagreement
    assert np.array_equal(pairs, pairs.T) and (np.diag(pairs) == 0).all()
    tests = torch.cat([task.x_test for task in toy_tasks()])
    labels = []
    for order in result.orders:
        learner, last = LastTask(0), toy_tasks()[order[-1]]
        learner.learn(last.x, last.y)
        labels.append(learner.predict(tests).argmax(1))
    assert pairs[0, 1] == pytest.approx((labels[0] != labels[1]).double().mean().item())
    pair_shares = [(a != b).double().mean() for i, a in enumerate(labels) for b in labels[:i]]
    assert result.learner.mean_disagreement == pytest.approx(np.mean(pair_shares))


def test_predictions_that_are_not_finite_count_as_wrong_and_are_reported() -> None:
    class Diverging(LastTask):
        def predict(self, x):
            return super().predict(x) * math.nan

    result = audit(Diverging, orders=2, seeds=2)
    assert result.learner.broken_runs == 4 and not result.learner.scores.any()
    assert "In 4 of 4 runs" in str(result)


@pytest.mark.slow
def test_scikit_learn_estimators_with_partial_fit_can_be_audited() -> None:
    from sklearn.linear_model import SGDClassifier

    make_learner = ol.audit.from_partial_fit(
        lambda seed: SGDClassifier(random_state=seed, learning_rate="constant", eta0=1.0),
        classes=2,
        batch_size=4,
    )
    result = audit(make_learner)
    assert result.learner.parts.average > 0.4 and not result.learner.ignores_seed
    assert result.learner.verdict == "sensitive"


# --- beside it, and the report -------------------------------------------------------------------


def test_other_learners_run_beside_it() -> None:
    result = audit(make_sgd(), 3, 2, compare={"last": LastTask, "sums": Sums})
    assert [each.name for each in result.learners] == ["mine", "last", "sums"]
    assert result["last"].ignores_seed and result["sums"].verdict == "none"


def test_an_exact_regressor_beside_it_takes_values_far_from_the_others() -> None:
    from sklearn.linear_model import SGDRegressor

    y = [torch.randn(120) for _ in range(3)]
    y[0][3] = 500.0  # 45 standard deviations of all values
    tasks = [
        ol.Task(torch.randn(100, 3), v[:100], torch.randn(20, 3), v[100:], name=f"{k}")
        for k, v in enumerate(y)
    ]
    mean = float(torch.cat([task.y for task in tasks]).mean())
    scale = float(torch.cat([task.y for task in tasks]).abs().max())
    exact = ol.audit.from_partial_fit(
        lambda seed: ol.ExactRegressor(
            random_state=seed, input_scale=1.0, target_mean=mean, target_scale=scale
        )
    )
    mine = ol.audit.from_partial_fit(lambda seed: SGDRegressor(random_state=seed))
    result = ol.order_sensitivity(mine, tasks, orders=3, seeds=2, compare={"exact": exact})
    assert result["exact"].verdict == "none"


def test_progress_counts_every_run() -> None:
    told: list[tuple[int, int, str]] = []
    audit(LastTask, 2, 3, progress=lambda *what: told.append(what))
    assert [done for done, _, _ in told] == list(range(7))
    assert {total for _, total, _ in told} == {6} and told[-1][2] == "done"


def test_the_report_says_it_all_in_text_html_and_json(tmp_path) -> None:
    result = audit(make_sgd(), compare={"sums": Sums})
    assert "mine is sensitive to the order" in str(result) and "Worst order: " in str(result)
    assert result._repr_html_() == result.html()
    page, numbers = result.save(tmp_path / "new" / "folder")
    content = json.loads(numbers.read_text())
    assert content == json.loads(result.json())
    assert np.array_equal(content["learner"]["scores"], result.learner.scores)
    assert content["comparisons"][0]["verdict"] == "none"
    assert content["comparisons"][0]["p_value"] is None
    assert page.read_text() == result.html()


def test_numbers_of_runs_may_be_numpy_integers() -> None:
    result = audit(LastTask, orders=np.int64(3), seeds=np.int64(2))
    assert result.learner.scores.shape == (2, 3, 4)


def test_the_digest_is_that_of_the_data_in_the_orders_that_were_run() -> None:
    first, same = audit(LastTask, 3, 2), audit(Sums, 3, 2)
    assert first.digest == same.digest and first.digest in first.text()
    assert first.digest != audit(LastTask, 3, 2, order_seed=1).digest
    others = ol.order_sensitivity(LastTask, toy_tasks(seed=1), orders=3, seeds=2)
    assert first.digest != others.digest
    assert first.learner.bits == audit(LastTask, 3, 2).learner.bits != same.learner.bits


def test_where_there_are_fewer_orders_than_asked_for_all_are_taken() -> None:
    result = ol.order_sensitivity(LastTask, toy_tasks()[:3], seeds=2)
    assert sorted(result.orders) == sorted(itertools.permutations(range(3)))
    assert result.learner.scores.shape == (2, 6, 3)


# --- refusals ------------------------------------------------------------------------------------


def test_what_cannot_be_audited_is_refused_in_a_sentence() -> None:
    tasks = toy_tasks()
    cases = [
        (lambda: audit(Mute), "no method predict"),
        (lambda: audit(lambda seed: torch.nn.Linear(2, 2)), "from_torch"),
        (lambda: audit(3), "function from a seed"),
        (lambda: audit(LastTask, orders=1), "orders must be an integer of at least 2, got 1"),
        (lambda: audit(LastTask, orders=2.5), "orders must be an integer of at least 2, got 2.5"),
        (lambda: audit(LastTask, seeds=1), "seeds must be an integer of at least 2, got 1"),
        (lambda: audit(LastTask, name="last", compare={"last": LastTask}), "another name"),
        (lambda: audit(LastTask, seeds=10**30), "at most 100,000 runs"),
        (lambda: ol.order_sensitivity(LastTask, tasks[:1]), "at least two tasks"),
        (lambda: ol.order_sensitivity(LastTask, [1, 2]), "list of int"),
        (lambda: ol.order_sensitivity(LastTask, None), "got NoneType"),
        (lambda: ol.order_sensitivity(LastTask, tasks[:1] * 2), "same name"),
        (lambda: ol.audit.from_torch(torch.nn.Linear(1, 1), print), "a new one for every run"),
        (lambda: ol.audit.from_partial_fit(print, classes=1), "at least 2"),
        (lambda: audit(ol.audit.from_partial_fit(LastTask, classes=2)), "no partial_fit"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: x[:1, 0] > 0, "labels \\[B\\] or scores"),
        (lambda x: x[:, :1], "at least two classes"),
        (lambda x: x[:, 0], "must give integer labels"),
        (lambda x: ["a"] * len(x), "labels \\[B\\] or scores"),
        (lambda x: 1 / 0, r"predicting task 'day 0' in the order \[0, 1, .* seed 0: ZeroDivision"),
    ],
)
def test_predictions_that_are_none_are_refused(answer, words: str) -> None:
    class Strange(LastTask):
        def predict(self, x):
            return answer(x)

    with pytest.raises(ValueError, match=words):
        audit(Strange)
