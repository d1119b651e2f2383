"""The audit calls learners what they are."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.audit.toys import LastTask, Mute, Stopping, Stumbling, Sums, make_sgd, toy_tasks
from torch.optim import SGD

import orderless as ol


def audit(make_learner, orders: int = 5, seeds: int = 3, **options) -> ol.audit.OrderSensitivity:
    return ol.order_sensitivity(make_learner, toy_tasks(), orders=orders, seeds=seeds, **options)


def synthetic(scores: np.ndarray) -> ol.audit.OrderSensitivity:
    bits = np.arange(scores[:, :, 0].size).reshape(scores.shape[:2]).astype(str)
    return ol.audit.OrderSensitivity("mine", [], [], scores, bits)


# --- what is claimed -----------------------------------------------------------------------------


def test_a_learner_that_forgets_is_sensitive() -> None:
    result = audit(make_sgd)
    assert result.verdict == "sensitive" and "sensitive" in str(result)


def test_a_learner_that_ignores_its_seed_is_found_out_and_compared_with_nothing() -> None:
    result = audit(LastTask)
    assert result.ignores_seed and result.p_value is None and result.seed_variance == 0.0
    assert result.verdict == "sensitive" and "nothing to compare with" in str(result)


def test_the_same_bits_in_every_order_are_no_dependence_at_all() -> None:
    result = audit(Sums)
    assert result.verdict == "none" and result.order_variance == 0.0


def test_an_order_effect_below_that_of_the_seed_is_not_called_sensitive() -> None:
    orders = np.arange(10.0)[None, :, None]
    seeds = np.arange(2.0)[:, None, None]
    # two seeds that differ by 1 have variance 1/4, and 1/2 is fair; ten orders 8.25 and 9.17
    for size, verdict in ((0.22, "below reseeding"), (0.24, "sensitive")):
        result = synthetic(size * orders + seeds)
        assert result.p_value == 1e-4 and result.verdict == verdict


def test_too_few_runs_decide_nothing() -> None:
    assert audit(make_sgd, orders=3, seeds=2).verdict == "undecided"  # 3! cases: p is 1/6 or more


def test_chance_is_the_score_of_the_best_constant_answer() -> None:
    shares = [task.y_test.double().mean().item() for task in toy_tasks()]
    result = audit(LastTask, 2, 2)
    assert result.chance == pytest.approx(max(np.mean(shares), 1 - np.mean(shares)))
    assert f"{100 * result.chance:.1f}%" in str(result)


class LastMean(LastTask):
    def learn(self, x, y, task=None):
        self.mean = y.mean()

    def predict(self, x):
        return self.mean.expand(len(x))


def test_a_regression_is_scored_by_r_squared() -> None:
    from sklearn.metrics import r2_score

    y = torch.tensor([0.0, 1.0, 2.0, 5.0])
    x = torch.zeros(4, 1)
    tasks = [ol.Task(x, y + shift, x, y + shift) for shift in (0, 1)]
    result = ol.order_sensitivity(LastMean, tasks, seeds=2)
    expected = [r2_score(y, [3] * 4), r2_score(y, [2] * 4)]  # task 1 comes last
    assert result.scores[0, 0] == pytest.approx(expected)
    assert result.score == "R^2" and result.chance <= 0
    with pytest.raises(ValueError, match="test values that differ"):
        ol.order_sensitivity(LastMean, [ol.Task(x, y, x, 0 * y)] * 2)
    with pytest.raises(ValueError, match="some have values"):
        ol.order_sensitivity(LastMean, [*tasks, *toy_tasks()])


def test_values_need_another_loss_than_that_of_classes() -> None:
    x, y = torch.randn(8, 2), torch.randn(8)
    make = ol.audit.from_torch(lambda: torch.nn.Linear(2, 1), lambda p: SGD(p, lr=0.1))
    with pytest.raises(ol.audit.LearnerError, match="float32.*cross_entropy.*loss=lambda"):
        ol.order_sensitivity(make, [ol.Task(x, y, x, y)] * 2, seeds=2)


# --- fair runs -----------------------------------------------------------------------------------


def test_only_the_order_differs_between_the_runs_of_a_seed() -> None:
    seen: list[torch.Tensor] = []

    def loss(outputs, labels):
        seen.append(labels)
        return outputs.sum()

    make = ol.audit.from_torch(
        lambda: torch.nn.Linear(2, 2), lambda p: SGD(p, lr=0.1), loss=loss, batch_size=4
    )
    first, second, other = make(0), make(0), make(1)
    assert torch.equal(first.module.weight, second.module.weight)
    assert not torch.equal(first.module.weight, other.module.weight)
    tasks = toy_tasks(2)
    for learner, order in ((first, (0, 1)), (second, (1, 0))):
        for number in order:
            learner.learn(tasks[number].x, tasks[number].y, task=number)
    labels = torch.stack(seen)  # six batches of each task
    assert torch.equal(labels[:12], labels[12:].roll(6, 0))


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

    careless, careful = (audit(make, orders=3, seeds=2).scores for make in (Careless, LastTask))
    assert np.array_equal(careless, careful)


def test_global_generators_are_set_by_the_seed_and_left_as_they_were() -> None:
    drawn: list[tuple[float, float, float]] = []

    class Drawing(LastTask):
        def __init__(self, seed: int) -> None:
            drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))

    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    Drawing(0)
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    audit(Drawing, orders=2, seeds=2)
    Drawing(0)
    assert drawn[0] == drawn[-1] and drawn[1] == drawn[2] != drawn[3] == drawn[4]


@pytest.mark.slow
def test_orders_and_bits_are_those_of_another_process_with_other_threads() -> None:
    program = (
        "import torch; torch.set_num_threads(2)\n"
        "from tests.audit.test_order_sensitivity import audit, make_sgd\n"
        "result = audit(make_sgd); print(result.digest, *result.bits.flat)\n"
    )
    result = audit(make_sgd)
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert other.stdout.split() == [result.digest, *result.bits.flat]


def test_the_digest_is_that_of_the_data_in_the_orders_that_were_run() -> None:
    first, same = audit(LastTask, 3, 2), audit(Sums, 3, 2)
    assert first.digest == same.digest and first.digest in str(first)
    assert first.digest != audit(LastTask, 3, 2, order_seed=1).digest
    others = ol.order_sensitivity(LastTask, toy_tasks(seed=1), orders=3, seeds=2)
    assert first.digest != others.digest
    assert not np.array_equal(first.bits, same.bits)


def test_where_there_are_fewer_orders_than_asked_for_all_are_taken() -> None:
    result = ol.order_sensitivity(LastTask, toy_tasks(3), seeds=2)
    every = itertools.permutations(["day 0", "day 1", "day 2"])
    assert sorted(result.orders) == sorted(" > ".join(days) for days in every)


def test_numbers_of_runs_may_be_numpy_integers() -> None:
    result = audit(LastTask, orders=np.int64(3), seeds=np.int64(2))
    assert result.scores.shape == (2, 3, 4)


# --- predictions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda scores: scores.argmax(1),
        lambda scores: scores.argmax(1).numpy().astype(np.float32),
        lambda scores: scores.bfloat16(),
        lambda scores: torch.where(scores == scores.max(1, keepdim=True)[0], scores, -math.inf),
    ],
)
def test_labels_and_scores_tensors_and_arrays_are_the_same_to_the_audit(form) -> None:
    class Other(LastTask):
        def predict(self, x):
            return form(super().predict(x))

    assert np.array_equal(audit(LastTask, 3, 2).scores, audit(Other, 3, 2).scores)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_count_as_wrong(broken: float) -> None:
    class Diverging(LastTask):
        def predict(self, x):
            return torch.full((len(x), 2), broken)

    assert not audit(Diverging, orders=2, seeds=2).scores.any()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: x[:1, 0] > 0, r"for B=24, got .* \[1\]"),
        (lambda x: x[:, :1], "several classes"),
        (lambda x: x[:, 0], "integer labels"),
        (lambda x: ["a"] * len(x), "got <U1"),
    ],
)
def test_predictions_that_are_none_are_refused(answer, words: str) -> None:
    class Strange(LastTask):
        def predict(self, x):
            return answer(x)

    with pytest.raises(ol.audit.LearnerError, match=words):
        audit(Strange)


def test_an_error_of_the_learner_is_its_own() -> None:
    with pytest.raises(RuntimeError, match="no luck"):
        audit(Stumbling)


@pytest.mark.parametrize(
    ("learner", "tasks", "options", "words"),
    [
        (Mute, toy_tasks(), {}, "got a Mute"),
        (lambda seed: torch.nn.Linear(2, 2), toy_tasks(), {}, "from_torch"),
        (LastTask, toy_tasks(), {"orders": 1}, "orders must be .* got 1"),
        (LastTask, toy_tasks(), {"orders": 2.5}, "orders must be .* got 2.5"),
        (LastTask, toy_tasks(), {"seeds": 1}, "seeds must be .* got 1"),
        (LastTask, toy_tasks(1), {}, "at least two tasks"),
        (LastTask, [1, 2], {}, "list of ol.Task"),
    ],
)
def test_what_cannot_be_audited_is_refused(learner, tasks, options, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ol.order_sensitivity(learner, tasks, **options)


def test_a_network_for_all_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="a new network for every run"):
        ol.audit.from_torch(torch.nn.Linear(1, 1), SGD)


# --- the report, and runs that are kept ----------------------------------------------------------


def test_text_and_json_hold_the_numbers() -> None:
    result = audit(make_sgd, name="sgd\x1b[2J")
    averages = 100 * result.scores.mean(axis=(0, 2))
    assert f"{averages.min():.1f}%, {result.orders[averages.argmin()]}" in str(result)
    assert f"{100 * result.order_variance**0.5:.2g} points" in str(result)
    assert all(line.isprintable() for line in str(result).splitlines())
    numbers = json.loads(result.json())
    assert np.array_equal(numbers["scores"], result.scores)
    assert numbers["verdict"] == "sensitive" and numbers["p_value"] == result.p_value


def test_a_stopped_audit_goes_on_and_runs_only_what_is_missing(tmp_path) -> None:
    path = tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        audit(Stopping(limit=4), 3, 2, name="mine", keep=path)
    told: list[tuple[int, int, str]] = []
    result = audit(LastTask, 3, 2, name="mine", keep=path, progress=lambda *what: told.append(what))
    assert [what[:2] for what in told] == [(4, 6), (5, 6)]
    assert result.json() == audit(LastTask, 3, 2, name="mine").json()
    for orders, key, made in ((3, "", 0), (5, "", 4), (3, "a second version", 6)):
        counted = Stopping()
        audit(counted, orders, 2, name="mine", keep=path, key=key)
        assert counted.made == made
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ol.io.DataError):
        audit(LastTask, 3, 2, keep=path)
