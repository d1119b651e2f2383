"""What torch offers around modules: threads, checkpoints, loops over layers, devices."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from tests.common import assert_identical, gradient_filter, whole_state
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import orderless as ol


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_threads_predict_as_one_does():
    pf = gradient_filter(network, 4, kind=ol.AveragingParticles)
    x = torch.randn(32, 6)
    right = pf.predict(x)
    before = whole_state(pf)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: pf.predict(x), range(100)))
    assert all(torch.equal(answer, right) for answer in answers)
    assert pf.particles.training
    assert_identical(whole_state(pf), before)
    assert isinstance(pf.particles[0], nn.Sequential)


def test_ensembles_made_in_threads_have_the_particles_of_their_seeds() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda seed: ol.Ensemble(network, 3, seed=seed), [0, 1] * 8))
    for seed, particles in zip([0, 1] * 8, made, strict=True):
        expected = ol.Ensemble(network, 3, seed=seed).get_parameter("0.weight")
        assert torch.equal(particles.get_parameter("0.weight"), expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_checkpoint_around_an_ensemble_draws_no_other_noise(n: int, reentrant: bool) -> None:
    particles = ol.Ensemble(network, n)
    x = torch.randn(5, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match="runs again inside a backward pass"):
        checkpoint(particles, x, use_reentrant=reentrant).sum().backward()
    particles.eval()
    checkpoint(particles, x, use_reentrant=reentrant).sum().backward()
    found = particles.get_parameter("3.weight").grad.clone()
    particles.zero_grad()
    particles(x).sum().backward()
    torch.testing.assert_close(found, particles.get_parameter("3.weight").grad)


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (nn.ReLU(), nn.Tanh(), "a ReLU here and a Tanh there"),
        (nn.Dropout(0.1), nn.Dropout(0.2), r"p=0\.1 here and 0\.2 there"),
        (nn.LayerNorm(6), nn.LayerNorm(6, eps=0.1), "eps=1e-05 here and 0.1 there"),
        (nn.Conv1d(6, 6, 1), nn.Conv1d(6, 6, 1, stride=2), r"stride=\(1,\) here"),
        (nn.Linear(6, 6), frozen(nn.Linear(6, 6)), "frozen there and trained here"),
    ],
)
def test_networks_of_equal_shapes_that_compute_something_else_are_refused(
    first: nn.Module, other: nn.Module, message: str
) -> None:
    networks = [nn.Sequential(nn.Linear(6, 6), layer) for layer in (first, other)]
    with pytest.raises(ValueError, match=message):
        ol.Ensemble.from_modules(networks)
    with pytest.raises(ValueError, match=message):
        ol.Ensemble.from_modules(networks[:1]).load_particle(0, networks[1])


def test_loops_over_layers_reach_them() -> None:
    particles = ol.Ensemble(network, 3)

    def moved() -> bool:
        before = particles.get_buffer("1.running_mean").clone()
        particles(torch.randn(20, 6))
        return not torch.equal(before, particles.get_buffer("1.running_mean"))

    for module in particles.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    assert not moved()
    particles.train()
    assert moved()
    particles.get_submodule("1").eval()
    assert not moved()
    particles.apply(lambda m: nn.init.zeros_(m.weight) if isinstance(m, nn.Linear) else None)
    assert not particles.get_parameter("3.weight").any()
    seen = []
    particles.get_submodule("3").register_forward_hook(lambda m, x, y: seen.append(y.shape))
    particles(torch.ones(5, 6))
    assert seen == [(5, 3)]
    assert "Linear(in_features=6, out_features=8, bias=True)" in repr(particles)


def test_averages_of_batches_are_those_of_each_network() -> None:
    """`update_bn` averages over all batches, by a number that a layer reads: one at a time."""
    particles = ol.Ensemble(network, 3)
    data = list(torch.randn(5, 20, 6))
    expected = [batch @ particles[1][0].weight.T + particles[1][0].bias for batch in data]
    with pytest.raises(RuntimeError, match="update_bn every network"):
        torch.optim.swa_utils.update_bn(data, particles)
    particles = ol.Ensemble(network, 3)
    for i, module in enumerate(particles[i] for i in range(3)):
        torch.optim.swa_utils.update_bn(data, module)
        particles.load_particle(i, module)
    means = torch.stack(expected).mean((0, 1))
    torch.testing.assert_close(particles.get_buffer("1.running_mean")[1], means)


def test_particles_without_numbers_say_so() -> None:
    particles = ol.Ensemble(network, 3, device="meta")
    with pytest.raises(RuntimeError, match="on the meta device, which holds no numbers"):
        particles(torch.ones(4, 6, device="meta"))


class Stateful(nn.Module):
    """It keeps its state in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, 4)
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.cell(x, self.state).detach()
        return self.state


def test_a_state_in_an_attribute_is_refused_in_chunks() -> None:
    with pytest.raises(RuntimeError, match="register it as a buffer, or use chunk_size=None"):
        ol.Ensemble(Stateful, 4, chunk_size=2)(torch.randn(5, 6))


@pytest.mark.parametrize("n", [1, 2])
def test_outputs_may_hold_none_and_numbers(n: int) -> None:
    x = torch.randn(2, 5, 6)
    particles = ol.Ensemble(lambda: nn.MultiheadAttention(6, 2, batch_first=True), n)
    outputs, weights = particles(x, x, x, need_weights=False)
    assert outputs.shape == (n, 2, 5, 6)
    assert weights is None


def test_an_ensemble_is_made_on_the_default_device() -> None:
    with torch.device("meta"):  # stands for a GPU
        particles = ol.Ensemble(network, 2)
        devices = {t.device.type for t in (*particles.tensors().values(), particles.indices)}
    assert devices == {"meta"} == {particles.device.type}


TRAINED = network()
ALIKE = {  # (what networks are made of, what is said)
    "a module": (network(), "init=ol.Perturb"),
    "a frozen module": (network().requires_grad_(False), "init=ol.Perturb"),  # it would be lost
    "always the same": (lambda: TRAINED, "all 2 particles are equal"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_particles_that_would_be_alike_or_lose_their_weights_are_told(name):
    make, words = ALIKE[name]
    with pytest.warns(UserWarning, match=words):
        ol.Ensemble(make, 2)


def test_mistakes_are_sentences():
    particles = ol.Ensemble(network, 2)
    with pytest.raises(ValueError, match="in_dims or per_particle=True, not both"):
        particles(torch.ones(2, 4, 6), in_dims=0, per_particle=True)
    with pytest.raises(ValueError, match="max_norm"):
        ol.Ensemble(lambda: nn.Embedding(9, 4, max_norm=1.0), 4, chunk_size=2)
    prune.l1_unstructured(particles.get_submodule("0"), "weight", amount=0.5)
    with pytest.raises(RuntimeError, match="lost its tensor 'weight'"):
        particles(torch.ones(4, 6))


def test_labels_may_be_bytes_as_in_torch() -> None:
    outputs, labels = torch.randn(3, 8, 2), torch.randint(2, (8,))
    losses = ol.per_particle(F.cross_entropy)
    assert torch.equal(losses(outputs, labels.byte()), losses(outputs, labels))


def test_whole_numbers_are_not_perturbed() -> None:
    class Counted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.count = nn.Parameter(torch.arange(3), requires_grad=False)

    particles = ol.Ensemble(Counted, 2, ol.Perturb())
    assert particles.get_parameter("count").tolist() == [[0, 1, 2]] * 2
