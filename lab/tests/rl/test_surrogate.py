"""Edges of the loss of N particles; test_plain_ppo.py has the loss itself."""

from __future__ import annotations

from dataclasses import replace

import torch
from lab.tests.toys import Walker
from torch import Tensor

import orderless as ol
from orderless_lab.rl import PPOSettings, Surrogate

SETTINGS = PPOSettings(
    clip=0.2, value_coefficient=0.5, entropy_coefficient=0.01, importance_limit=2.0
)
N = 3
B = 12


def minibatch() -> list[Tensor]:
    """Random numbers in the shape of a minibatch, in float64; two samples are no experience."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    valid = torch.ones(B, dtype=torch.bool)
    valid[3] = valid[7] = False
    log_old = -normal(N, B).abs() - 0.3
    log_behaviour = -normal(B).abs() - 0.5
    actions = torch.randint(3, (B,), generator=generator)
    tail = [normal(N, B), normal(N, B), normal(B), valid, torch.tensor(1.0)]
    return [normal(B, 6), actions, log_old, log_behaviour, *tail]


def test_rows_follow_the_lineage() -> None:
    particles = ol.Ensemble.from_modules([ol.Ensemble(Walker, 1)[0]] * N).double()
    lineage = torch.tensor([2, 2, 0])
    batch = minibatch()
    own = Surrogate(particles, SETTINGS)(*batch)
    traced = Surrogate(particles, SETTINGS, lineage)(*batch)
    torch.testing.assert_close(traced, own[lineage])


def test_a_particle_without_a_finite_loss_has_no_energy_either() -> None:
    particles = ol.Ensemble(Walker, N, seed=0).double()
    with torch.no_grad():
        particles.value.bias[1] = torch.inf
    energies, _ = Surrogate(particles, replace(SETTINGS, weigh_by="policy"))(*minibatch())
    assert energies.isfinite().tolist() == [True, False, True]


def test_an_action_that_a_network_rules_out_adds_nothing_to_the_entropy() -> None:
    """With a logit of -inf: 0 log 0 = 0, and the gradient is that of the other two actions."""

    class Two(Walker):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits, value = super().forward(x)
            return logits.index_fill(-1, torch.tensor([2]), -torch.inf), value

    class Fewer(Walker):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits, value = super().forward(x)
            return logits[..., :2], value

    batch = minibatch()
    batch[1] = batch[1].clamp(max=1)
    found = []
    for kind in (Two, Fewer):
        particles = ol.Ensemble(kind, N, seed=0).double()
        losses = Surrogate(particles, SETTINGS)(*batch)
        found.append([losses, *torch.autograd.grad(losses.sum(), list(particles.parameters()))])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)
