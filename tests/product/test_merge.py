"""`ol.merge`: checkpoints become one network, by RegMean's formula with a prior."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from tests.common import train
from tests.product.tasks import convolutional, five_tasks, mlp, product
from torch import Tensor, nn

import orderless as ol
from orderless.io import digest

Part = tuple[nn.Module, tuple[Tensor, Tensor]]


def trained(start: nn.Module, task: tuple[Tensor, Tensor], steps: int = 5) -> nn.Module:
    """A copy of the start after some steps of plain torch."""
    network, (x, y) = copy.deepcopy(start), task
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


def parts(start: nn.Module, tasks: int = 3) -> list[Part]:
    return [(trained(start, task), task) for task in five_tasks()[:tasks]]


def same(a: nn.Module, b: nn.Module) -> bool:
    return digest(dict(a.state_dict())) == digest(dict(b.state_dict()))


def regmean(start: Tensor, parts: list[tuple[Tensor, Tensor]], p_0, anchor: str) -> Tensor:
    """From its equation, with p_0 I and p_0 times the anchor added; parts: inputs a and weights."""
    total = sum(a.T @ a for a, _ in parts)
    cross = sum(a.T @ a @ weights for a, weights in parts)
    pulled = start
    if anchor == "sum":
        pulled = start + sum(weights - start for _, weights in parts)
    if p_0 is None:
        p_0 = {"start": 1e-3, "sum": 0.1}[anchor] * total.diagonal().mean()
    return torch.linalg.solve(total + p_0 * torch.eye(len(total)).double(), cross + p_0 * pulled)


@pytest.mark.parametrize("anchor", ["start", "sum"])
@pytest.mark.parametrize("p_0", [0.3, None])
def test_linear_layers_are_merged_by_the_formula_of_regmean_with_a_prior(p_0, anchor) -> None:
    start = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3, bias=False))
    networks = [(n.double(), (x.double(), y)) for n, (x, y) in parts(start)]
    start = start.double()
    merged = ol.merge(start, networks, prior_precision=p_0, anchor=anchor)

    def matrix(layer: nn.Linear) -> Tensor:
        rows = [layer.weight.T, *([layer.bias[None]] if layer.bias is not None else [])]
        return torch.cat(rows).detach()

    first, second = [], []
    for network, (x, _) in networks:
        constant = torch.ones_like(x[:, :1])
        first.append((torch.cat([x, constant], dim=1), matrix(network[0])))
        second.append((network[:2](x).detach(), matrix(network[2])))
    for place, seen in ((0, first), (2, second)):
        expected = regmean(matrix(start[place]), seen, p_0, anchor)
        assert (matrix(merged[place]) - expected).abs().max() < 1e-10


@pytest.mark.parametrize("make_model", [mlp, convolutional])
def test_it_is_the_merge_of_the_learner_to_the_bit(make_model) -> None:
    pf = product(make_model, 1)
    start, networks = pf.particles[0], []
    for task in five_tasks()[:3]:
        train(pf, [task] * 3)
        networks.append((pf.particles[0], task))
        pf.end_task(task)
    assert same(ol.merge(start, networks), pf.networks[0])


def test_no_order_of_the_networks_makes_a_difference() -> None:
    start = convolutional()
    networks = parts(start)
    first = ol.merge(start, networks)
    for order in itertools.permutations(networks):
        assert same(ol.merge(start, order), first)


def test_the_start_and_the_networks_are_left_alone() -> None:
    start = convolutional()
    networks = parts(start)
    before = copy.deepcopy([start, *(network for network, _ in networks)])
    merged = ol.merge(start, networks)
    assert all(map(same, before, [start, *(network for network, _ in networks)]))
    assert merged.training and type(merged) is type(start) and not same(merged, start)


@pytest.mark.slow
def test_two_halves_of_the_digits_become_one_classifier() -> None:
    """Two small CNNs, each trained on five classes: neither knows the others', the merged does."""
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(y)
    torch.manual_seed(0)
    start = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10)
    )
    nn.init.zeros_(start[3].weight)
    train = torch.arange(len(y)) % 4 > 0
    networks = []
    for half in (y < 5, y >= 5):
        network, own = copy.deepcopy(start), (train & half).nonzero()[:, 0]
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        for batch in own.repeat(5).split(16):
            optimizer.zero_grad()
            error = network(x[batch]) - F.one_hot(y[batch], 10)
            (error.square().sum(1).mean() / 2).backward()
            optimizer.step()
        networks.append((network, (x[own], y[own])))
    merged = ol.merge(start, networks)

    def right(network: nn.Module) -> float:
        return float((network(x[~train]).argmax(1) == y[~train]).double().mean())

    assert max(right(network) for network, _ in networks) < 0.55
    assert right(merged) > 0.9


START, DATA = mlp(), five_tasks()[0]


def frozen() -> nn.Module:
    network = copy.deepcopy(START)
    network[0].requires_grad_(False)
    return network


STATE = START.state_dict()
MISTAKES = {  # (a call, what is said)
    "nothing": (lambda: ol.merge(START, []), "at least one network, got none"),
    "another": (lambda: ol.merge(START, [(convolutional(), DATA)]), "another architecture"),
    "prior": (lambda: ol.merge(START, parts(START, 1), prior_precision=-1), "positive, got -1"),
    "frozen": (lambda: ol.merge(frozen(), parts(START, 1)), "'0.weight'"),
    "a state": (lambda: ol.merge(START, [(STATE, DATA)]), "got OrderedDict.*load_state_dict"),
    "from a state": (lambda: ol.merge(STATE, [(START, DATA)]), "got OrderedDict.*load_state_dict"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_merged_is_refused_in_a_sentence(name):
    call, words = MISTAKES[name]
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_what_was_not_trained_is_told():
    with pytest.warns(UserWarning, match=r"output columns \[.*: train the network"):
        ol.merge(START, [(START, DATA)])
