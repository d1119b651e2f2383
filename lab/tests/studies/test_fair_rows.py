"""Fair rows: ways to train have the same start, and a head has the columns that it should."""

import torch

import orderless as ol


def make_tasks(count):
    torch.manual_seed(0)
    made = []
    for k in range(count):
        x = torch.randn(200, 1, 28, 28)
        made.append(ol.Task(x, torch.arange(200) % 2, x, torch.arange(200) % 2, f"{k}"))
    return made


def test_with_one_task_all_ways_take_the_same_steps(study):
    tasks = make_tasks(1)
    ways = {way: study.trained(way, "squared", 0.01, tasks, [0], seed=0) for way in study.WAYS}
    joint = ways["joint"].outputs(tasks[0].x)
    assert torch.equal(ways["gradient descent"].outputs(tasks[0].x), joint)
    # a product of one task is its network, but for the prior
    torch.testing.assert_close(ways["product"].outputs(tasks[0].x), joint, rtol=0, atol=0.05)


def test_a_head_has_a_column_for_a_label_or_for_a_task_and_label(study):
    tasks = make_tasks(2)
    for with_tasks in (False, True):
        row = study.head_row("mnist", tasks, 64, with_tasks)
        assert row["equal_bits"]
        assert row["columns"] == ("task and label" if with_tasks else "label")
