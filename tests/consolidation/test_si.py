"""SI: the path integral against the loss, and everything against a plain loop on one network."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.common import (
    OPTIMIZERS,
    assert_identical,
    cross_entropy,
    gradient_filter,
    take_step,
    train,
)
from tests.consolidation.tiny import network, task
from torch import nn
from torch.optim import SGD, Adam
from torch.testing import assert_close

import orderless as ol
from orderless.consolidation import SI


def of_si(optimizer=OPTIMIZERS["sgd"], make=network, **options) -> ol.WeightedParticleFilter:
    pf = gradient_filter(make, optimizer=optimizer, dtype=torch.float64)
    pf.register(SI(pf.particles, **options))
    return pf


def test_path_integral_is_the_drop_of_the_loss_for_small_steps():
    # A step of size lr changes the loss by -lr g^2 + O(lr^2); the O(lr^2) is what the bound allows.
    pf = of_si(partial(SGD, lr=1e-3))
    (si,) = pf.hooks
    x, y = task(0)
    infos = train(pf, [(x, y)] * 30)
    drop = infos[0].loss_before - infos[-1].loss_after
    path = sum(path.reshape(3, -1).sum(1) for path in si.path.values())
    assert (drop > 1e-4).all()
    assert_close(path, drop, rtol=2e-3, atol=0)


def plain_si(network: nn.Module, tasks: int, strength: float, xi: float) -> list[float]:
    """Synaptic intelligence on one network, written down as in the literature."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    parameters = list(network.parameters())
    anchor = [p.detach().clone() for p in parameters]
    importance = [torch.zeros_like(p) for p in parameters]
    penalties = []
    for number in range(tasks):
        x, y = task(number)
        path = [torch.zeros_like(p) for p in parameters]
        for _ in range(5):
            old = [p.detach().clone() for p in parameters]
            penalty = strength * sum(
                (w * (p - a) ** 2).sum()
                for w, p, a in zip(importance, parameters, anchor, strict=True)
            )
            penalties.append(float(torch.as_tensor(penalty).detach()))
            optimizer.zero_grad()
            (F.cross_entropy(network(x), y) + penalty).backward()
            optimizer.step()
            for w, p, o in zip(path, parameters, old, strict=True):
                w -= p.grad * (p.detach() - o)
        for w, o, p, a in zip(importance, path, parameters, anchor, strict=True):
            w += o / ((p.detach() - a) ** 2 + xi)
        anchor = [p.detach().clone() for p in parameters]
    return penalties


def test_si_equals_a_plain_loop_on_each_network():
    pf = of_si(partial(Adam, lr=0.01), strength=20.0, xi=0.1)
    (si,) = pf.hooks
    networks = list(pf.particles)
    penalties = []
    for number in range(3):
        x, y = task(number)
        for _ in range(5):
            loss = partial(lambda x, y: cross_entropy(pf.particles(x), y), x, y)
            penalties.append(pf.step(loss, penalty=si.penalty).penalty)
        si.end_task()
    expected = [plain_si(network, 3, 20.0, 0.1) for network in networks]
    found = torch.stack(penalties, 1)
    assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(pf.particles, networks, strict=True):
        assert_close(ours.state_dict(), theirs.state_dict())
    assert found[:, -1].abs().min() > 0


def test_parameters_without_a_gradient_stay_free():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    pf = of_si(make=Half)
    (si,) = pf.hooks
    take_step(pf, *task(0))
    si.end_task()
    assert si.importance["used.weight"].any() and not si.importance["unused.weight"].any()


def test_a_step_that_has_not_been_leaves_no_trace_in_the_path():
    pf = of_si()
    (si,) = pf.hooks
    take_step(pf, *task(0))
    before = copy.deepcopy(si.path)

    def closure():
        raise KeyError("no data")

    with pytest.raises(KeyError):
        pf.step(closure)
    assert_identical(si.path, before)
