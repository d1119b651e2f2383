"""Output columns that a task's loss does not reach, and what is no weight: running statistics."""

import pytest
import torch
import torch.nn.functional as F
from tests.product.tasks import (
    convolutional,
    cross_entropy,
    five_tasks,
    learned,
    product,
    same_bits,
)
from torch import Tensor, nn

import orderless as ol
from orderless.product.moments import reached_columns

P_0 = 0.3


def zero_head() -> nn.Module:
    head = nn.Linear(6, 6)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head.double()


def masked(outputs: Tensor, y: Tensor, columns: list[int]) -> Tensor:
    mask = torch.full((6,), -torch.inf, dtype=outputs.dtype)
    mask[columns] = 0.0
    return cross_entropy(outputs + mask, y)


def task_incremental(order: list[int]) -> ol.PosteriorProduct:
    """Three tasks with two columns each, and a start of zeros."""
    particles = ol.Ensemble(zero_head, 1)
    pf = ol.PosteriorProduct(particles, lambda p: torch.optim.SGD(p, lr=0.5), prior_precision=P_0)
    for task in order:
        x, y = data(task)
        columns = [2 * task, 2 * task + 1]
        for _ in range(4):
            pf.step(lambda x=x, y=y, columns=columns: masked(particles(x), y, columns))
        pf.end_task((x, y))
    return pf


def data(task: int) -> tuple[Tensor, Tensor]:
    x, y = five_tasks()[task]
    return x.double(), y % 2 + 2 * task


def test_a_column_is_merged_from_the_tasks_that_reach_it() -> None:
    """A head of three tasks equals three heads, each with its own task's product."""
    merged = task_incremental([0, 1, 2]).networks[0]
    for task in range(3):
        alone = task_incremental([task]).networks[0]
        own = [2 * task, 2 * task + 1]
        assert torch.equal(merged.weight[own], alone.weight[own])
        assert torch.equal(merged.bias[own], alone.bias[own])


def test_columns_have_no_order_and_leave_no_trace() -> None:
    whole = task_incremental([0, 1, 2])
    assert same_bits(task_incremental([2, 0, 1]), whole)
    assert same_bits(task_incremental([2]) + task_incremental([1, 0]), whole)
    assert same_bits(whole - task_incremental([1]), task_incremental([2, 0]))
    assert len(whole._sums.layers["weight"].grams.high) == 3
    left = whole - task_incremental([1]) - task_incremental([0])
    assert len(left._sums.layers["weight"].grams.high) == 2  # reached by task 2, and by none


def test_targets_of_zero_at_a_zero_head_are_reached() -> None:
    """There is no gradient, and yet the loss says what those outputs are to be."""
    particles = ol.Ensemble(zero_head, 2)
    x, y = data(1)

    def squared_error() -> Tensor:
        targets = F.one_hot(y, 6).double()
        return (particles(x) - targets).square().sum((1, 2))

    assert reached_columns(particles, [squared_error]).all()
    found = reached_columns(particles, [lambda: masked(particles(x), y, [2, 3])])
    assert found.tolist() == [False, False, True, True, False, False]
    both = [lambda: masked(particles(x), y, [2, 3]), lambda: masked(particles(x), y + 2, [4, 5])]
    assert reached_columns(particles, both).tolist() == [False, False, True, True, True, True]


def test_looking_at_columns_changes_nothing() -> None:
    particles = ol.Ensemble(lambda: nn.Sequential(nn.Dropout(0.5), convolutional()), 2)
    before = {name: tensor.clone() for name, tensor in particles.state_dict().items()}
    noise, x, y = torch.get_rng_state(), *five_tasks()[0]
    reached_columns(particles, [lambda: cross_entropy(particles(x), y)])
    assert all(torch.equal(t, before[name]) for name, t in particles.state_dict().items())
    assert torch.equal(torch.get_rng_state(), noise) and int(particles.noise_counter) == 0
    assert all(p.requires_grad and p.grad is None for p in particles.parameters())


def test_outputs_that_are_scaled_after_the_head_cannot_be_left_out() -> None:
    pf = product(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    x, y = five_tasks()[0]
    pf.step(lambda: masked(pf.particles(x), y % 2, [0, 1]))
    with pytest.raises(ValueError, match=r"does not depend on outputs \[2, 3, 4, 5\]"):
        pf.end_task((x, y))
    assert pf.tasks == 0 and int(pf.steps) == 1


def test_running_statistics_are_those_of_all_values() -> None:
    """The mean and variance of a mixture of the tasks' distributions, by number of values."""
    pf = learned([0, 1], make_model=convolutional)
    each = [learned([task], make_model=convolutional).networks for task in range(2)]
    for i in range(2):
        means = torch.stack([m.state_dict()["2.running_mean"][i] for m in each]).double()
        variances = torch.stack([m.state_dict()["2.running_var"][i] for m in each]).double()
        mean = means.mean(0)  # as many values in each
        variance = variances.mean(0) + means.var(0, correction=0)
        merged = pf.networks.state_dict()
        torch.testing.assert_close(merged["2.running_mean"][i], mean.float())
        torch.testing.assert_close(merged["2.running_var"][i], variance.float())


def test_one_task_keeps_its_own_statistics() -> None:
    pf, (x, y) = product(convolutional), five_tasks()[0]
    pf.step(lambda: cross_entropy(pf.particles(x), y))
    own = pf.particles.state_dict()["2.running_var"].clone()
    pf.end_task((x, y))
    torch.testing.assert_close(pf.networks.state_dict()["2.running_var"], own)
    assert int(pf.particles.state_dict()["2.num_batches_tracked"][0]) == 0
