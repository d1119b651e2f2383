"""Particles on a GPU with a group around them: here of one rank, by NCCL."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import orderless as ol

cross_entropy = ol.per_particle(F.cross_entropy)


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(16, 6, generator=generator).cuda() for _ in range(count)]
    return [(x, x[:, :3].argmax(1)) for x in inputs]


def particles(group: Any) -> ol.Ensemble:
    return ol.Ensemble(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), 5, group=group)


def weighted(group: Any) -> ol.ParticleFilter:
    networks = particles(group).cuda()
    pf = ol.WeightedParticleFilter(networks, torch.optim.Adam(networks.parameters(), lr=0.01))
    step = pf.compile(lambda x, y: cross_entropy(networks(x), y))
    for x, y in batches(6):
        step(x, y)
    return pf


def bootstrap(group: Any) -> ol.ParticleFilter:
    networks = particles(group).cuda()
    pf = ol.BootstrapParticleFilter(networks, perturbation=0.1)
    for x, y in batches(6):
        pf.step(lambda x=x, y=y: cross_entropy(networks(x), y))
    return pf


@pytest.mark.parametrize("make", [weighted, bootstrap])
def test_a_group_of_one_rank_changes_nothing(make, group):
    alone, together = make(None), make(group)
    x = batches(1)[0][0]
    # recorded and eager steps may choose other kernels for the same sums
    close: Any = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(together.log_weights, alone.log_weights, **close)
    torch.testing.assert_close(together.log_evidence, alone.log_evidence, **close)
    for combine in ("probs", "logits"):
        expected = alone.predict(x, combine=combine)
        torch.testing.assert_close(together.predict(x, combine=combine), expected, **close)
    ours, theirs = together.state_dict()["particles"], alone.state_dict()["particles"]
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name].cpu(), tensor.cpu(), **close)
    together.load_state_dict(together.state_dict())
    torch.testing.assert_close(together.predict(x), alone.predict(x), **close)
