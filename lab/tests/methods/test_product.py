"""The product in a scenario, against a plain PyTorch loop over one network, and a merge."""

import copy

import pytest
import torch
import torch.nn.functional as F
from lab.tests.toys import network as model
from lab.tests.toys import points as scenario

import orderless as ol
from orderless_lab.methods import METHODS, Setup
from orderless_lab.suites import SupervisedSettings as Settings

LR, KINDS = 0.1, ("domain", "task", "class")


def make_learner(kind, name="product", **changes):
    tasks = scenario(kind)
    settings = Settings(particles=3, product_lr=LR, **changes)
    return METHODS[name].build(Setup(tasks, settings, lambda: model(tasks.outputs), 0))


def learned(kind, order, name="product", **changes):
    learner, seen = make_learner(kind, name, **changes), []
    for task in order:
        seen.append(task)
        learner.begin_task(seen)
        for x, y in learner.scenario.batches(task, batch_size=6, seed=0, epochs=2):
            learner.learn(x, y)
        learner.end_task()
    return learner


def merged(learner):
    return torch.cat([p.detach().flatten() for p in learner.filter.networks.parameters()])


def by_hand(kind, squared):
    """One network: every task from the same start by plain steps, then the library's merge.

    tests/product/test_merge.py holds that against its formula. Columns of one task alone are merged
    of its network alone.
    """
    learner = make_learner(kind)
    tasks, start = learner.scenario, learner.filter.particles[0]
    trained = []
    for task in range(3):
        network = copy.deepcopy(start)
        optimizer = torch.optim.SGD(network.parameters(), lr=LR)
        used = [2 * task, 2 * task + 1] if kind == "task" else list(range(tasks.outputs))
        for x, y in tasks.batches(task, batch_size=6, seed=0, epochs=2):
            scores = network(x)[:, used]
            place = torch.tensor([used.index(int(label)) for label in y])
            loss = F.cross_entropy(scores, place)
            if squared:
                loss = 0.5 * (scores - F.one_hot(place, len(used))).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        trained.append((network, tasks.train_set(task)))
    found = ol.merge(start, trained)
    if kind == "task":
        for task, part in enumerate(trained):
            alone = ol.merge(start, [part])
            for all_columns, own in zip(found[2].parameters(), alone[2].parameters(), strict=True):
                all_columns.data[2 * task : 2 * task + 2] = own.data[2 * task : 2 * task + 2]
    return torch.cat([p.detach().flatten() for p in found.parameters()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_it_is_what_a_plain_loop_and_a_merge_give(kind, loss):
    learner = learned(kind, [2, 0, 1], product_loss=loss)
    # float32 training, summed in another order
    expected = by_hand(kind, loss == "squared")
    torch.testing.assert_close(merged(learner), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["product", "product+particles"])
def test_no_order_of_the_tasks_makes_a_difference(kind, name):
    first = merged(learned(kind, range(3), name))
    for order in ((2, 1, 0), (1, 2, 0)):  # of sums: all orders
        assert torch.equal(merged(learned(kind, order, name)), first)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_head_starts_at_zero_and_may_learn_faster(optimizer):
    rates = {"optimizer": optimizer, "adam_lr": LR, "product_hidden_lr": 0.01}
    learner = make_learner("domain", **rates)
    assert not any(p.any() for p in learner.filter.particles.get_submodule("2").parameters())
    rates = {
        id(p): group["lr"]
        for group in learner.filter.task_filter.optimizer.param_groups
        for p in group["params"]
    }
    by_name = {name: rates[id(p)] for name, p in learner.filter.particles.named_parameters()}
    assert by_name == {"0.weight": 0.01, "0.bias": 0.01, "2.weight": LR, "2.bias": LR}


def test_plasticity_is_that_of_the_networks_that_answer():
    learner = learned("domain", range(3))
    x = learner.scenario.test_set(0)[0]
    seen, weights = learner.representation(x)
    torch.testing.assert_close(seen, learner.filter.networks[0][:2](x).detach())
    assert torch.equal(weights[2], learner.filter.networks[0][2].weight)
