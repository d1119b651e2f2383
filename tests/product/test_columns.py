"""Output columns that a task's loss does not reach, and what is no weight: running statistics."""

import copy
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.common import cross_entropy
from tests.product.tasks import (
    convolutional,
    five_tasks,
    learned,
    product,
    same_bits,
)
from torch import Tensor, nn
from torch.testing import assert_close

import orderless as ol

P_0 = 0.3
X, Y = five_tasks()[0]


def zero_head() -> nn.Module:
    head = nn.Linear(6, 6)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head.double()


def masked(pf: ol.PosteriorProduct, x: Tensor, y: Tensor, columns: list[int]) -> Tensor:
    """Losses of these columns alone."""
    outputs = pf.particles(x)
    mask = torch.full((6,), -torch.inf, dtype=outputs.dtype)
    mask[columns] = 0.0
    return cross_entropy(outputs + mask, y)


def of_zeros() -> ol.PosteriorProduct:
    particles = ol.Ensemble(zero_head, 1)
    return ol.PosteriorProduct(particles, lambda p: torch.optim.SGD(p, lr=0.5), prior_precision=P_0)


def task_incremental(order: list[int]) -> ol.PosteriorProduct:
    """Three tasks with two columns each, and a start of zeros."""
    pf = of_zeros()
    for task in order:
        x, y = data(task)
        columns = [2 * task, 2 * task + 1]
        for _ in range(4):
            pf.step(partial(masked, pf, x, y, columns))
        pf.end_task((x, y), active=torch.tensor(columns))
    return pf


def data(task: int) -> tuple[Tensor, Tensor]:
    x, y = five_tasks()[task]
    return x.double(), y % 2 + 2 * task


def test_columns_have_no_order_and_leave_no_trace() -> None:
    whole = task_incremental([0, 1, 2])
    assert same_bits(task_incremental([2, 0, 1]), whole)
    assert same_bits(task_incremental([2]) + task_incremental([1, 0]), whole)
    assert same_bits(whole - task_incremental([1]), task_incremental([2, 0]))
    left = whole - task_incremental([1]) - task_incremental([0])
    grams = [key for key in left._sums.sums if key[0] == "gram"]
    assert grams == [("gram", "weight", (4, 5))]  # no trace of the others
    assert same_bits(whole - whole, task_incremental([]))


def test_tasks_that_share_columns_are_merged_column_by_column() -> None:
    """The tasks of a column decide alone: two overlapping tasks against the formula by hand."""
    pf = of_zeros()
    users = {0: [0, 1, 2], 1: [2, 3]}
    grams, weights = [], []
    for task, columns in users.items():
        x, y = data(task)
        labels = y % len(columns) + columns[0]
        pf.step(partial(masked, pf, x, labels, columns))
        a = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        grams.append(a.T @ a)
        network = pf.particles[0]
        weights.append(torch.cat([network.weight.T, network.bias[None]]).detach())
        pf.end_task((x, y), active=columns)
    merged = torch.cat([pf.networks[0].weight.T, pf.networks[0].bias[None]])
    for column in range(6):
        own = [task for task, columns in users.items() if column in columns]
        gram = P_0 * torch.eye(7).double() + sum(grams[task] for task in own)
        cross = sum((grams[t] @ weights[t][:, column] for t in own), torch.zeros(7).double())
        assert_close(merged[:, column], torch.linalg.solve(gram, cross))


def right(pf: ol.PosteriorProduct, x: Tensor, y: Tensor) -> float:
    return float((pf.predict(x).argmax(1) == y).double().mean())


HINGE = nn.Linear(6, 4), F.multi_margin_loss, "softmax", 1
LIKELIHOOD = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(-1)), F.nll_loss, torch.exp, 8


@pytest.mark.parametrize(("network", "of_one", "link", "size"), [HINGE, LIKELIHOOD])
def test_nothing_is_decided_by_the_first_batch(network, of_one, link, size) -> None:
    """It lacks a class; and a hinge loss on single samples moves few outputs at a time."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator)
    y = (x @ torch.randn(6, 4, generator=generator)).argmax(1)
    loss = ol.per_particle(of_one)
    particles = ol.Ensemble(lambda: copy.deepcopy(network), n=1)
    pf = ol.PosteriorProduct(particles, lambda p: torch.optim.SGD(p, lr=0.1), link=link)
    late = torch.cat([(y != 2).nonzero()[:, 0], (y == 2).nonzero()[:, 0]])
    for batch in late.repeat(3).split(size):
        pf.step(lambda batch=batch: loss(particles(x[batch]), y[batch]))
    trained = float((particles(x)[0].argmax(1) == y).double().mean())
    pf.end_task((x, y))
    assert trained > 0.6 and right(pf, x, y) > trained - 0.02


def test_columns_that_training_did_not_change_are_named():
    pf = product(lambda: nn.Linear(6, 6).double())
    x, y = data(1)
    pf.step(partial(masked, pf, x, y, [2, 3]))
    with pytest.warns(UserWarning, match=r"columns \[0, 1, 4, 5\].*active="):
        pf.end_task((x, y))
    pf.step(partial(masked, pf, x, y, [2, 3]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.end_task((x, y), active=[2, 3])


@pytest.mark.parametrize(
    ("layer", "active", "words"),
    [
        (nn.Identity(), [5, 6], r"from 0 to 5, got \[5, 6\]"),
        (nn.Identity(), [-1], r"from 0 to 5, got \[-1\]"),
        (nn.Identity(), [], r"from 0 to 5, got \[\]"),
        (nn.Tanh(), [0, 1], r"active=\[0, 1\].* straight from a Linear layer"),
    ],
)
def test_columns_that_do_not_exist_or_come_from_no_linear_layer_are_refused(layer, active, words):
    pf = product(lambda: nn.Sequential(nn.Linear(6, 6), layer))
    pf.step(partial(masked, pf, X, Y % 2, [0, 1]))
    with pytest.raises(ValueError, match=words):
        pf.end_task((X, Y % 2), active=active)
    assert pf.tasks == 0 and int(pf.steps) == 1


def test_running_statistics_are_those_of_all_values() -> None:
    """The mean and variance of a mixture of the tasks' distributions, by number of values."""
    merged = learned([0, 1], make_model=convolutional).networks.state_dict()
    each = [learned([task], make_model=convolutional).networks.state_dict() for task in range(2)]
    means = torch.stack([state["2.running_mean"] for state in each]).double()
    variances = torch.stack([state["2.running_var"] for state in each]).double()
    variance = variances.mean(0) + means.var(0, correction=0)  # as many values in each
    assert_close(merged["2.running_mean"], means.mean(0).float())
    assert_close(merged["2.running_var"], variance.float())
    assert not merged["2.num_batches_tracked"].any()
