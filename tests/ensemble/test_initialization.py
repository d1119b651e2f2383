"""Particle i depends on (seed, i) and on nothing else."""

import pytest
import torch
from tests.common import assert_identical
from torch import nn

import orderless as ol


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 40), nn.BatchNorm1d(40), nn.Linear(40, 30))


INITS = {"fresh": "fresh", "one": ol.Perturb(), "each": ol.Perturb(base="fresh")}


@pytest.mark.parametrize("init", INITS.values(), ids=INITS)
@pytest.mark.parametrize("template", [False, True], ids=["function", "module"])
def test_a_particle_is_the_same_in_any_company(init, template: bool) -> None:
    make = network() if template else network
    few, many = ol.Ensemble(make, 5, init), ol.Ensemble(make, 50, init, chunk_size=7)
    first = {name: tensor[:5] for name, tensor in many.state_dict().items()}
    assert_identical(first, dict(few.state_dict()))


@pytest.mark.parametrize("init", INITS.values(), ids=INITS)
def test_particles_and_seeds_differ(init) -> None:
    a, b = (ol.Ensemble(network, 6, init, seed=s).get_parameter("0.weight") for s in (0, 1))
    assert len(torch.cat([a, b]).unique(dim=0)) == 12


def test_fresh_particles_are_independent_draws_of_the_layers_own_initialiser() -> None:
    weights = ol.Ensemble(network, 30).get_parameter("2.weight").detach().flatten(1)
    bound = 40**-0.5
    assert weights.abs().max() <= bound
    assert weights.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    correlations = torch.corrcoef(weights) - torch.eye(30)
    assert correlations.abs().max() < 5 / weights.shape[1] ** 0.5  # five standard errors


def test_nobody_elses_random_numbers_are_touched() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = ol.Ensemble(network, 3, ol.Perturb())
    assert torch.equal(torch.rand(2), expected)
    second = ol.Ensemble(network, 3, ol.Perturb())
    assert_identical(second.state_dict(), first.state_dict())


def test_perturbed_particles_are_a_network_plus_noise_of_a_random_radius() -> None:
    """Base "one": the same network for all; r ~ U(low, high) per tensor and particle."""
    n, low, high = 200, 0.1, 0.3
    base = ol.Ensemble(network, 1).get_parameter("2.weight")[0]
    particles = ol.Ensemble(network, n, ol.Perturb(low, high))
    radii = (particles.get_parameter("2.weight") - base).detach().flatten(1).std(1)
    slack = 5 * high / (2 * base.numel()) ** 0.5  # five standard errors of a standard deviation
    assert radii.min() > low - slack
    assert radii.max() < high + slack
    assert radii.mean().item() == pytest.approx((low + high) / 2, abs=0.02)
    assert radii.std().item() == pytest.approx((high - low) / 12**0.5, rel=0.15)
    others = particles.get_parameter("0.weight") - ol.Ensemble(network, 1).get_parameter("0.weight")
    other_radii = others.detach().flatten(1).std(1)
    correlation = torch.corrcoef(torch.stack([radii, other_radii]))[0, 1]
    assert correlation.abs() < 0.35  # another radius for another tensor
    assert torch.equal(particles.get_buffer("1.running_var"), torch.ones(n, 40))


def test_perturbing_nothing_is_the_network_itself() -> None:
    one = ol.Ensemble(network, 1).state_dict()
    for name, tensor in ol.Ensemble(network, 4, ol.Perturb(0.0, 0.0)).state_dict().items():
        assert torch.equal(tensor, one[name].expand_as(tensor))


def test_a_function_that_hands_out_one_network_again_and_again() -> None:
    """A trained network perturbed N times: each time the same one, and it stays as it is."""
    trained = network()
    before = trained[0].weight.detach().clone()
    particles = ol.Ensemble(lambda: trained, 4, ol.Perturb(0.01, 0.01))
    assert torch.equal(trained[0].weight, before)
    noise = (particles.get_parameter("0.weight") - before).detach().flatten(1)
    assert len(noise.unique(dim=0)) == 4
    torch.testing.assert_close(noise.std(1), torch.full((4,), 0.01), rtol=0.2, atol=0)


def test_a_template_is_initialised_as_its_constructor_would() -> None:
    """Attention sets the bias of its own output layer to 0 after that layer's initialiser."""
    template = nn.MultiheadAttention(8, 2)
    nn.init.ones_(template.out_proj.bias)
    particles = ol.Ensemble(template, 3)
    assert (particles.get_parameter("out_proj.bias") == 0).all()
    assert (particles.get_parameter("in_proj_bias") == 0).all()
    assert (template.out_proj.bias == 1).all()
    assert len(particles.get_parameter("in_proj_weight").unique(dim=0)) == 3


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.1), (0.2, 0.1), (float("nan"), 1.0)])
def test_impossible_radii_are_named(low: float, high: float) -> None:
    with pytest.raises(ValueError, match=f"low={low}, high={high}"):
        ol.Perturb(low, high)
