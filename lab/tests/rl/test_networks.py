"""The policy and value networks, alone and as an ensemble."""

from __future__ import annotations

import pytest
import torch

import orderless as ol
from orderless_lab.rl import Compact, Impala, policy_and_values, policy_logits

IMAGES = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)


@pytest.mark.parametrize("network", [Impala, Compact])
def test_an_ensemble_computes_what_each_network_computes(network: type) -> None:
    particles = ol.Ensemble(network, n=3, seed=1)
    logits, values = particles(IMAGES)
    assert logits.shape == (3, 2, 15)
    assert values.shape == (3, 2)
    for i in range(3):
        own_logits, own_values = particles[i](IMAGES)
        # other kernels add in another order
        torch.testing.assert_close(logits[i], own_logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(values[i], own_values, atol=1e-5, rtol=1e-5)


def test_bytes_are_scaled_inside_the_network() -> None:
    network = Compact()
    torch.testing.assert_close(network(IMAGES), network(IMAGES.float() / 255))


@pytest.mark.parametrize("source", [Compact, Compact()], ids=["function", "template"])
def test_heads_start_orthogonal_and_particles_differ(source: object) -> None:
    particles = ol.Ensemble(source, n=2, seed=3)  # type: ignore[arg-type]
    for i in range(2):
        policy = particles[i].policy.weight
        torch.testing.assert_close(policy @ policy.T, 1e-4 * torch.eye(15), atol=1e-9, rtol=1e-4)
        torch.testing.assert_close(particles[i].value.weight.norm(), torch.tensor(1.0))
        assert not particles[i].policy.bias.any()
    assert not torch.equal(particles[0].policy.weight, particles[1].policy.weight)


def test_a_network_without_values_is_a_classifier() -> None:
    particles = ol.Ensemble(lambda: Compact(value=False), n=2)
    outputs = particles(IMAGES)
    assert outputs.shape == (2, 2, 15)
    assert policy_logits(outputs) is outputs
    with pytest.raises(TypeError, match="value=True"):
        policy_and_values(outputs)


def test_half_precision_outputs_are_read_as_float32() -> None:
    logits, values = policy_and_values(ol.Ensemble(Compact, n=2, precision="bf16")(IMAGES))
    assert logits.dtype == values.dtype == torch.float32
