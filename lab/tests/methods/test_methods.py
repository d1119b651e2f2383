"""The registry: which methods there are, and that they start alike."""

import pytest
import torch
from lab.tests.toys import network, points

from orderless.filters import Linearized, WeightedParticleFilter
from orderless_lab.methods import METHODS, Setup, method
from orderless_lab.suites import SupervisedSettings as Settings

PARTICLES = ["wpf", "averaging", "bootstrap", "ewc+wpf", "lwf+wpf", "si+wpf"]
SINGLE = ["gd", "adam", "er", "joint", "ewc", "lwf", "si"]


def setup(seed=0, **changes):
    settings = Settings(particles=3, **changes)
    return Setup(points("domain"), settings, lambda: network(2), seed)


def test_all_methods_are_there():
    assert set(PARTICLES + SINGLE) <= set(METHODS)
    assert all(METHODS[name].description for name in METHODS)


@pytest.mark.parametrize("name", PARTICLES + SINGLE)
def test_methods_start_from_the_same_networks(name):
    particles = METHODS[name].build(setup()).filter.particles
    assert particles.n == (3 if name in PARTICLES else 1)
    assert METHODS[name].particles == (name in PARTICLES)
    reference = METHODS["wpf"].build(setup()).filter.particles
    other = METHODS["wpf"].build(setup(seed=1)).filter.particles
    for key, value in particles.state_dict().items():
        assert torch.equal(value, reference.state_dict()[key][: particles.n])
        assert not torch.equal(value, other.state_dict()[key][: particles.n])


def test_learning_leaves_the_next_cells_networks_alone():
    first = METHODS["gd"].build(setup())
    before = {k: v.clone() for k, v in first.filter.particles.state_dict().items()}
    first.begin_task([0])
    first.learn(*first.scenario.train_set(0))
    second = METHODS["gd"].build(setup()).filter.particles.state_dict()
    assert all(torch.equal(before[key], second[key]) for key in before)


def test_perturbed_particles_surround_one_network():
    fresh = METHODS["gd"].build(setup()).filter.particles
    near = METHODS["wpf"].build(setup(init="perturb", perturb_high=0.01)).filter.particles
    for key, value in near.state_dict().items():
        assert not torch.equal(value[0], value[1])
        assert (value - fresh.state_dict()[key]).abs().max() < 0.06  # 6 deviations


def test_fresh_particles_with_noise_surround_networks_of_their_own():
    options = {"init": "fresh+noise", "perturb_low": 0.01, "perturb_high": 0.01}
    fresh = METHODS["wpf"].build(setup()).filter.particles.state_dict()
    near = METHODS["wpf"].build(setup(**options)).filter.particles.state_dict()
    for key, value in near.items():
        distance = (value - fresh[key]).abs()
        assert 0 < distance.mean() < 0.02 and distance.max() < 0.06  # 6 deviations
        assert (fresh[key][0] - fresh[key][1]).abs().max() > 0.06


def test_another_rule_weighs_the_same_particles():
    pf = setup(min_ess=2.0).weighted_by(Linearized())
    usual = setup(min_ess=2.0).weighted()
    assert pf.weighting == Linearized() and pf.min_ess == usual.min_ess == 2.0
    for key, value in pf.particles.state_dict().items():
        assert torch.equal(value, usual.particles.state_dict()[key])


@pytest.mark.parametrize(
    ("benchmark", "kind", "ewc", "si"),
    [
        ("splitmnist", "domain", 1e10, 5e4),
        ("splitcifar100", "domain", 1e3, 500.0),
        ("splitcifar100", "class", 100.0, 5.0),
        ("custom", "task", 1e5, 10.0),
    ],
)
def test_the_literatures_strengths_are_the_benchmarks_own(benchmark, kind, ewc, si):
    given = setup()
    given.scenario.name, given.scenario.kind = benchmark, kind
    assert METHODS["ewc"].build(given).consolidation.strength == ewc
    assert METHODS["si+wpf"].build(given).consolidation.strength == si


@pytest.mark.parametrize(
    ("optimizer", "step", "closed"),
    [
        ("sgd", "auto", True),
        ("sgd", "gradient", False),
        ("adam", "auto", False),
        ("sgd", "closed", True),
    ],
)
def test_steps_are_closed_for_penalties_by_the_settings(optimizer, step, closed):
    for name in ("ewc", "si+wpf"):
        built = METHODS[name].build(setup(optimizer=optimizer, ewc_step=step, si_step=step))
        assert built.consolidation.closed == closed


def test_settings_reach_the_parts():
    wpf = METHODS["wpf"].build(setup(weighting="linearized", loss_scale=2.0, min_ess=2.0)).filter
    assert isinstance(wpf, WeightedParticleFilter)
    assert isinstance(wpf.weighting, Linearized)
    assert (wpf.loss_scale, wpf.min_ess) == (2.0, 2.0)
    assert METHODS["er"].build(setup(replay_buffer=7)).replay.capacity == 7
    ewc = METHODS["ewc"].build(setup(ewc_strength=5.0, fisher="sampled", fisher_samples=3))
    assert (ewc.consolidation.strength, ewc.consolidation.fisher) == (5.0, "sampled")
    assert METHODS["si"].build(setup(si_xi=0.3)).consolidation.xi == 0.3
    assert METHODS["lwf"].build(setup(lwf_temperature=3.0)).consolidation.temperature == 3.0
    chunked = METHODS["wpf"].build(setup(chunk_size=2, precision="bf16")).filter.particles
    assert (chunked.chunk_size, chunked.precision) == (2, "bf16")


def test_what_is_replayed_follows_the_batches_seed_and_not_the_networks():
    def replayed(**changes):
        replay = METHODS["er"].build(setup(replay_buffer=4, **changes)).replay
        return torch.cat([replay.mix(torch.arange(8) + 8 * k)[0] for k in range(4)])

    assert torch.equal(replayed(seed=1, batch_seed=0), replayed(seed=0))
    assert not torch.equal(replayed(seed=1), replayed(seed=0))


def test_optimizers_are_as_set():
    def optimizer(name, **changes):
        return METHODS[name].build(setup(**changes)).filter.optimizer

    sgd = optimizer("wpf", lr=0.3)
    assert isinstance(sgd, torch.optim.SGD) and float(sgd.param_groups[0]["lr"]) == 0.3
    for adam in (optimizer("adam", adam_lr=0.2), optimizer("gd", optimizer="adam", adam_lr=0.2)):
        assert isinstance(adam, torch.optim.Adam)
        assert float(adam.param_groups[0]["lr"]) == 0.2


def test_a_name_is_given_once(monkeypatch):
    monkeypatch.setattr("orderless_lab.methods.registry.METHODS", dict(METHODS))
    family: list[str] = []
    for _ in range(2):  # a module that is reloaded registers again
        method("mine", "one network, my way", family=family)(lambda setup: None)
    with pytest.raises(ValueError, match="a method called 'gd' already: choose another name"):
        method("gd", "not gradient descent", family=family)(lambda setup: None)
    with pytest.raises(ValueError, match="a method called 'mine' already"):
        method("mine", "copied, and the name forgotten", family=family)(setup)
    assert family == ["mine"]
