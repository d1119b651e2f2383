"""Steps of version 0.2, whose outputs `as_in_0_2.safetensors` holds, are these steps."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import orderless as ol

KEPT = load_file(Path(__file__).with_name("as_in_0_2.safetensors"))
WAYS = {
    "adam clipped": (partial(torch.optim.Adam, lr=0.01), {"max_grad_norm": 0.5}),
    "momentum linearized": (
        partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        {"weighting": "linearized"},
    ),
    "sgd": (partial(torch.optim.SGD, lr=0.05), {}),
}
STEPS = {"adam clipped": 20, "momentum linearized": 20, "sgd": 50}


def network() -> nn.Module:
    hidden = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(*hidden, nn.Linear(8, 3))


def trained(name: str) -> dict[str, Tensor]:
    make_optimizer, options = WAYS[name]
    particles = ol.Ensemble(network, 4, seed=3)
    pf = ol.WeightedParticleFilter(particles, make_optimizer(particles.parameters()), **options)
    loss = ol.per_particle(F.cross_entropy)
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS[name]):
        x = torch.randn(16, 6, generator=generator)
        y = torch.randint(0, 3, (16,), generator=generator)
        pf.step(lambda x=x, y=y: loss(particles(x), y))
    evidence = {"log_weights": pf.raw_log_weights, "log_evidence": pf.log_evidence}
    return {**particles.state_dict(), **evidence}


def products() -> Tensor:
    """Products as this machine rounds them: another machine's last bits differ."""
    x = torch.linspace(-1, 1, 96).sin().view(16, 6)
    return torch.bmm(x.expand(4, 16, 6), torch.linspace(-1, 1, 192).cos().view(4, 6, 8))


@pytest.mark.parametrize("name", WAYS)
def test_steps_are_those_of_0_2(name: str) -> None:
    """Bit for bit where products are; plain SGD within 1e-6, for it rounds in another order."""
    same_machine = torch.equal(products(), KEPT["products"])
    tolerance = 1e-5 if not same_machine else 1e-6 if name == "sgd" else 0.0
    for key, ours in trained(name).items():
        torch.testing.assert_close(ours, KEPT[f"{name}/{key}"], rtol=0, atol=tolerance)
