"""SI: the path integral against the loss, and everything against a plain loop on one network."""

import pytest
import torch
import torch.nn.functional as F
from tests.consolidation.tiny import particles, task
from torch import nn

import orderless as ol
from orderless.consolidation import SI

LOSS = ol.per_particle(F.cross_entropy)


def test_path_integral_is_the_drop_of_the_loss_for_small_steps():
    # A step of size lr changes the loss by -lr g^2 + O(lr^2); the O(lr^2) is what the bound allows.
    ensemble = particles()
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=1e-3)
    pf, si = ol.AveragingParticles(ensemble, optimizer), SI(ensemble)
    pf.register(si)
    x, y = task(0)
    first = LOSS(ensemble(x), y).detach()
    for _ in range(30):
        pf.step(lambda: LOSS(ensemble(x), y))
    drop = first - LOSS(ensemble(x), y).detach()
    path = sum(path.reshape(3, -1).sum(1) for path in si.path.values())
    assert (drop > 1e-4).all()
    torch.testing.assert_close(path, drop, rtol=2e-3, atol=0)


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
    ensemble = particles()
    networks = [ensemble[i] for i in range(3)]
    si = SI(ensemble, strength=20.0, xi=0.1)
    pf = ol.WeightedParticleFilter(ensemble, torch.optim.Adam(ensemble.parameters(), lr=0.01))
    pf.register(si)
    penalties = []
    for number in range(3):
        x, y = task(number)
        for _ in range(5):
            info = pf.step(lambda x=x, y=y: LOSS(ensemble(x), y), penalty=si.penalty)
            penalties.append(info.penalty)
        si.end_task()
    for i, network in enumerate(networks):
        expected = torch.tensor(plain_si(network, 3, 20.0, 0.1), dtype=torch.float64)
        ours = torch.stack([p[i].double() for p in penalties])
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
        for p, q in zip(ensemble.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(p[i], q)
    assert penalties[-1].abs().min() > 0


def test_parameters_without_a_gradient_stay_free():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    ensemble = ol.Ensemble(Half, 2).double()
    si = SI(ensemble)
    pf = ol.AveragingParticles(ensemble, torch.optim.SGD(ensemble.parameters(), lr=0.1))
    pf.register(si)
    x, y = task(0)
    pf.step(lambda: LOSS(ensemble(x), y))
    si.end_task()
    assert si.importance["used.weight"].any() and not si.importance["unused.weight"].any()


def test_a_step_that_has_not_been_leaves_no_trace_in_the_path():
    networks, (x, y) = particles(), task(0)
    pf = ol.WeightedParticleFilter(networks, torch.optim.SGD(networks.parameters(), lr=0.1))
    si = SI(networks)
    pf.register(si)
    loss = ol.per_particle(F.cross_entropy)
    pf.step(lambda: loss(networks(x), y))
    before = {name: path.clone() for name, path in si.path.items()}

    def closure():
        raise KeyError("no data")

    with pytest.raises(KeyError):
        pf.step(closure)
    for name, path in si.path.items():
        assert torch.equal(path, before[name])


def test_bad_settings_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="xi must be positive, got 0"):
        SI(particles(), xi=0)
