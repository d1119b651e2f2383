"""Every method in every kind of scenario: a GPU learns what the CPU learns."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from orderless_lab.methods import Setup, find_method
from orderless_lab.runs.launch import deterministic
from orderless_lab.suites import Scenario, Task, find_suite
from orderless_lab.suites.supervised import mlp

SUITE = find_suite("splitmnist")
SUPERVISED = SUITE.family
SMALL = ["particles=4", "exact_features=32", "exact_particles=3"]
SETTINGS = SUITE.preset("demo").settings.with_text([*SMALL, "ewc_strength=1", "si_strength=0.1"])


def learned(name: str, kind: str, device: str) -> Tensor:
    """What a method says of the last task after three tasks of five batches each."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 56, 12, generator=generator)
    y = (x[..., 0] > 0).long()
    cut = [tensor.to(device) for tensor in (x[:, :40], y[:, :40], x[:, 40:], y[:, 40:])]
    scenario = Scenario([Task(*(part[t] for part in cut)) for t in range(3)], kind=kind)
    network = partial(mlp, 12, 16, scenario.outputs)
    learner = find_method(name).build(Setup(scenario, SETTINGS, network, seed=0))
    for task in range(3):
        learner.begin_task([*range(task + 1)])
        for batch in scenario.batches(task, batch_size=8, seed=0):
            learner.learn(*batch)
        learner.end_task()
    return learner.outputs(scenario.test_set(2)[0], 2).cpu().double()


@pytest.mark.parametrize("kind", ["domain", "task", "class"])
@pytest.mark.parametrize("name", SUPERVISED)
def test_a_method_learns_on_the_gpu_what_it_learns_on_the_cpu(name: str, kind: str) -> None:
    expected, found = learned(name, kind, "cpu"), learned(name, kind, "cuda")
    # fifteen steps of float32 in other kernels
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", SUPERVISED)
def test_deterministic_kernels_give_the_same_bits_again(name: str) -> None:
    with deterministic(True):
        first, second = learned(name, "domain", "cuda"), learned(name, "domain", "cuda")
    assert torch.equal(first, second)
