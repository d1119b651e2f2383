import doctest
import itertools
import math

import pytest
import torch

from orderless_lab.suites import Scenario, Task, orders, scenario

SIZES = (40, 33, 5)  # samples of the three tasks


def identify(task: int, sample: int) -> int:
    return 1000 * task + sample


def make(kind="domain", **options) -> Scenario:
    """Three tasks of 3 classes; x holds the number of its task and sample, y is sample mod 3."""
    tasks = []
    for task, size in enumerate(SIZES):
        x = torch.tensor([[float(identify(task, sample))] for sample in range(size)])
        x_test = -1 - task - torch.arange(6.0).view(6, 1)
        tasks.append(Task(x, torch.arange(size) % 3, x_test, torch.arange(6) % 3, f"t{task}"))
    return Scenario(tasks, kind=kind, **options)


def numbers(batches) -> list[list[int]]:
    return [batch[0].flatten().int().tolist() for batch in batches]


def flat(lists: list[list[int]]) -> list[int]:
    return list(itertools.chain(*lists))


def jitter(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + torch.rand(x.shape, generator=generator)


def assert_same_stream(first, second) -> None:
    for one, other in itertools.zip_longest(first, second):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_examples_in_the_docstrings_run():
    result = doctest.testmod(scenario)
    assert result.attempted > 3 and result.failed == 0


# Labels and outputs


@pytest.mark.parametrize("kind, outputs", [("domain", 3), ("task", 9), ("class", 9)])
def test_labels_are_shifted_into_the_outputs_of_their_task(kind, outputs):
    scenario = make(kind)
    assert (len(scenario), scenario.classes_per_task, scenario.outputs) == (3, 3, outputs)
    for task, size in enumerate(SIZES):
        shift = 0 if kind == "domain" else 3 * task
        assert scenario.targets(task).tolist() == [shift + s % 3 for s in range(size)]
        assert scenario.test_targets(task).tolist() == [shift + s % 3 for s in range(6)]
        assert scenario.tasks[task].y.tolist() == [s % 3 for s in range(size)]
        for x, y in scenario.batches(task, batch_size=4, seed=0):
            assert (y == shift + (x.flatten().long() % 1000) % 3).all()


def test_active_columns_of_each_kind():
    assert make("domain").active([0, 1], 1) is None
    assert make("task").active([0, 2], 2).tolist() == [6, 7, 8]
    assert make("class").active([2, 0], 2).tolist() == [0, 1, 2, 6, 7, 8]
    assert make("class").active([2, 0], 0).tolist() == [0, 1, 2, 6, 7, 8]
    assert make("class").active([], 0) is None


def test_description_of_a_scenario():
    scenario = make(name="mine", transform=lambda x: x.repeat(1, 4).view(-1, 2, 2))
    assert scenario.input_shape == (2, 2)
    assert scenario.task_names == ["t0", "t1", "t2"]
    assert "mine" in repr(scenario)
    x, y = torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)
    assert Scenario([Task(x, y, x, y)]).task_names == ["task 0"]


def test_whole_sets_are_transformed_and_not_augmented():
    scenario = make("class", augment=jitter, transform=lambda x: x * 2)
    x, y = scenario.test_set(1)
    assert torch.equal(x, scenario.tasks[1].x_test * 2) and torch.equal(y, scenario.test_targets(1))
    x, y = scenario.train_set(1)
    assert torch.equal(x, scenario.tasks[1].x * 2) and torch.equal(y, scenario.targets(1))


# Batches


def test_a_pass_sees_every_sample_once_and_drops_the_short_batch():
    scenario = make()
    for task, size in ((0, 40), (1, 33)):
        seen = numbers(scenario.batches(task, batch_size=8, seed=0))
        assert [len(batch) for batch in seen] == [8] * (size // 8)
        samples = flat(seen)
        assert len(set(samples)) == len(samples)
        assert set(samples) <= {identify(task, sample) for sample in range(size)}
        assert samples != sorted(samples)


def test_a_task_smaller_than_a_batch_is_one_batch():
    (batch,) = numbers(make().batches(2, batch_size=8, seed=0))
    assert sorted(batch) == [identify(2, sample) for sample in range(5)]
    assert len(numbers(make().batches(2, batch_size=8, seed=0, iterations=7))) == 7


def test_passes_are_shuffled_differently_and_iterations_cycle_through_them():
    scenario = make()
    passes = numbers(scenario.batches(0, batch_size=10, seed=0, epochs=3))
    assert len(passes) == 12
    first, second, third = passes[:4], passes[4:8], passes[8:]
    assert sorted(flat(first)) == sorted(flat(second)) == sorted(flat(third))
    assert first != second != third != first
    assert numbers(scenario.batches(0, batch_size=10, seed=0, iterations=9)) == passes[:9]


@pytest.mark.parametrize("options", [{"epochs": 3}, {"iterations": 13}])
def test_n_batches_counts_what_batches_gives(options):
    scenario = make()
    for task, batch_size in itertools.product(range(3), (1, 4, 7, 64)):
        made = sum(1 for _ in scenario.batches(task, batch_size=batch_size, seed=0, **options))
        assert scenario.n_batches(task, batch_size, **options) == made
    made = sum(1 for _ in scenario.joint_batches([0, 2], batch_size=4, seed=0, **options))
    assert scenario.n_batches([0, 2], 4, **options) == made


def test_a_resumed_stream_is_the_rest_of_the_whole_one():
    scenario = make("class", augment=jitter)
    options = {"batch_size": 8, "seed": 3, "epochs": 3}
    whole = list(scenario.batches(0, **options))
    together = list(scenario.joint_batches([0, 1], **options))
    for start in range(len(whole) + 2):
        assert_same_stream(scenario.batches(0, start=start, **options), whole[start:])
    for start in (0, 1, 8, 9, 10, len(together)):
        assert_same_stream(scenario.joint_batches([0, 1], start=start, **options), together[start:])


def test_skipping_makes_none_of_the_skipped_batches():
    made = []

    def count(x, generator):
        made.append(len(x))
        return x

    rest = make(augment=count).batches(0, batch_size=4, seed=0, iterations=10**9, start=10**9 - 2)
    assert len(list(rest)) == 2 == len(made)


def test_interleaved_streams_do_not_disturb_each_other():
    scenario = make(augment=jitter)
    options = {"batch_size": 4, "seed": 7, "iterations": 20}
    pairs = list(zip(scenario.batches(0, **options), scenario.batches(1, **options), strict=True))
    assert_same_stream([first for first, _ in pairs], scenario.batches(0, **options))
    assert_same_stream([second for _, second in pairs], scenario.batches(1, **options))


def test_seeds_and_tasks_have_different_shuffles_and_noise():
    x = torch.arange(40.0).view(40, 1)
    y = torch.arange(40) % 2
    scenario = Scenario([Task(x, y, x, y), Task(x, y, x, y)])
    shuffles = [
        tuple(flat(numbers(scenario.batches(task, batch_size=4, seed=seed))))
        for task in range(2)
        for seed in range(10)
    ]
    assert len(set(shuffles)) == 20

    zeros = Scenario([Task(x * 0, y, x, y), Task(x * 0, y, x, y)], augment=jitter)
    noise = [
        batch.flatten()
        for task in range(2)
        for seed in range(3)
        for batch, _ in zeros.batches(task, batch_size=4, seed=seed, epochs=2)
    ]
    assert len(torch.cat(noise).unique()) == 2 * 3 * 80


# Several tasks at once


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
def test_joint_batches_mix_all_samples_of_the_tasks(kind):
    scenario = make(kind)
    batches = list(scenario.joint_batches([1, 0], batch_size=1, seed=0))
    found = sorted(int(x) for x, _, _ in batches)
    assert found == [identify(task, s) for task in (0, 1) for s in range(SIZES[task])]
    for x, y, task in scenario.joint_batches([0, 1], batch_size=8, seed=0):
        assert torch.equal(task, x.flatten().long() // 1000)
        shift = 0 if kind == "domain" else 3 * task
        assert torch.equal(y, shift + x.flatten().long() % 1000 % 3)
        assert 0 < int(task.sum()) < 8  # holds for this seed; a stream by task would fail it


def test_joint_batches_do_not_depend_on_how_the_tasks_are_listed():
    scenario = make(augment=jitter)
    options = {"batch_size": 8, "seed": 0}
    first = scenario.joint_batches([0, 1, 2], **options)
    assert_same_stream(first, scenario.joint_batches((2, 0, 1), **options))


# Validation


def test_validation_holds_out_training_data_class_by_class():
    scenario = make("class").validation(0.2)
    for task, size in enumerate(SIZES):
        kept, held = scenario.tasks[task].x.flatten(), scenario.tasks[task].x_test.flatten()
        assert sorted([*kept.tolist(), *held.tolist()]) == [identify(task, s) for s in range(size)]
        for label in range(3):
            members = sum(s % 3 == label for s in range(size))
            expected = min(max(1, round(0.2 * members)), members - 1)
            assert int((scenario.tasks[task].y_test == label).sum()) == expected
        assert torch.equal(scenario.tasks[task].y_test, held.long() % 1000 % 3)
    again = make("class").validation(0.2)
    assert all(torch.equal(a.x, b.x) for a, b in zip(scenario.tasks, again.tasks, strict=True))
    assert scenario.kind == "class" and scenario.task_names == ["t0", "t1", "t2"]


# Orders


def test_orders_are_distinct_and_begin_with_the_identity():
    for n_tasks, count in ((1, 1), (3, 6), (5, 120), (20, 50)):
        found = orders(n_tasks, count, seed=1)
        assert len(found) == len(set(found)) == count
        assert found[0] == tuple(range(n_tasks))
        assert all(sorted(order) == list(range(n_tasks)) for order in found)
    assert set(orders(4, math.factorial(4), seed=0)) == set(itertools.permutations(range(4)))


def test_order_k_does_not_depend_on_how_many_are_asked_for():
    many = orders(5, 100, seed=4)
    for count in (1, 2, 10, 50):
        assert orders(5, count, seed=4) == many[:count]
    assert orders(5, 10, seed=5)[1:] != many[1:10]


def test_more_orders_than_there_are_is_an_error():
    with pytest.raises(ValueError, match=r"at most 6, .* 3 tasks, got 7"):
        orders(3, 7, seed=0)
    with pytest.raises(ValueError, match="permutations must be at least 1, got 0"):
        orders(3, 0, seed=0)


# Wrong input


def test_wrong_input_is_named_in_the_error():
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="labels of a scenario must be integers"):
        Scenario([Task(x, y.float(), x, y.float())])
    with pytest.raises(ValueError, match="kind must be one of domain, task, class, got 'tsk'"):
        Scenario([Task(x, y, x, y)], kind="tsk")
    with pytest.raises(ValueError, match="at least one task"):
        Scenario([])
    with pytest.raises(ValueError, match="one shape"):
        Scenario([Task(x, y, x, y), Task(x[:, :1], y, x[:, :1], y)])
    scenario = make()
    for options in (
        {"batch_size": 0},
        {"batch_size": 1, "epochs": 0},
        {"batch_size": 1, "start": -1},
    ):
        with pytest.raises(ValueError, match="must be"):
            scenario.batches(0, seed=0, **options)  # at once, not at the first batch
    for task in (-1, 3):
        with pytest.raises(IndexError, match=f"0 to 2, got {task}"):
            scenario.batches(task, batch_size=1, seed=0)
    with pytest.raises(ValueError, match="at least one task"):
        scenario.joint_batches([], batch_size=1, seed=0)
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"got {fraction}"):
            scenario.validation(fraction)
