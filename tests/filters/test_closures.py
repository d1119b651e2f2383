"""How often a closure is called, under which noise, and what the penalty may do."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.filters.oracles import (
    batches,
    cnn,
    cross_entropy,
    dropout_mlp,
    mlp,
    points,
)
from torch import Tensor, nn

import orderless as ol


def sgd(particles: ol.Ensemble, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(particles.parameters(), lr=lr)


X, Y = next(batches(1))


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (ol.WeightedParticleFilter, {}, [True, False]),
        (ol.WeightedParticleFilter, {"weighting": "linearized"}, [True]),
        (ol.AveragingParticles, {}, [True]),
    ],
)
def test_called_once_with_grad_and_for_the_trapezoid_once_without(kind, options, expected) -> None:
    particles, grad_modes = ol.Ensemble(mlp, 3), []

    def closure() -> Tensor:
        grad_modes.append(torch.is_grad_enabled())
        return cross_entropy(particles(X), Y)

    pf = kind(particles, sgd(particles), **options)
    with torch.no_grad():  # whatever the caller's mode is
        pf.step(closure)
    assert grad_modes == expected


def test_both_evaluations_use_the_same_dropout_mask_and_steps_use_others() -> None:
    """lr = 0: only another mask could make the second loss differ from the first."""
    particles = ol.Ensemble(dropout_mlp, 4)
    pf = ol.WeightedParticleFilter(particles, sgd(particles, lr=0.0))
    infos = [pf.step(lambda: cross_entropy(particles(X), Y)) for _ in range(3)]
    for info in infos:
        assert torch.equal(info.loss_before, info.loss_after)
    assert not torch.equal(infos[0].loss_before, infos[1].loss_before)
    assert not torch.equal(infos[1].loss_before, infos[2].loss_before)


def test_several_closures_and_a_weighed_penalty_replay_their_own_masks() -> None:
    particles = ol.Ensemble(dropout_mlp, 4)
    seen: dict[str, list[Tensor]] = {"first": [], "second": [], "penalty": []}

    def closure(name: str):
        def losses() -> Tensor:
            seen[name].append(cross_entropy(particles(X), Y))
            return seen[name][-1]

        return losses

    pf = ol.WeightedParticleFilter(particles, sgd(particles, lr=0.0), weigh_penalty=True)
    info = pf.step([closure("first"), closure("second")], penalty=closure("penalty"))
    for before, after in seen.values():
        assert torch.equal(before, after)
    assert not torch.equal(seen["first"][0], seen["second"][0])
    assert not torch.equal(seen["first"][0], seen["penalty"][0])
    assert torch.equal(info.loss_before, info.loss_after)
    torch.testing.assert_close(info.penalty, seen["penalty"][0].detach())


def test_torchs_own_random_numbers_are_repeated_and_then_go_on() -> None:
    particles, drawn = ol.Ensemble(mlp, 2), []

    def closure() -> Tensor:
        drawn.append(torch.rand(()).item())
        return cross_entropy(particles(X), Y)

    pf = ol.WeightedParticleFilter(particles, sgd(particles))
    torch.manual_seed(0)
    expected = [torch.rand(()).item() for _ in range(2)]
    torch.manual_seed(0)
    pf.step(closure)
    pf.step(closure)
    assert drawn == [expected[0], expected[0], expected[1], expected[1]]


@pytest.mark.parametrize("weighting", ["trapezoid", "linearized"])
def test_gradients_see_the_penalty_and_weights_do_not(weighting: str) -> None:
    """x moves by loss + penalty; log w falls by the loss at both ends of that move."""
    particles = points(4)
    x0 = particles.x.detach().clone()
    pf = ol.WeightedParticleFilter(particles, sgd(particles), weighting=weighting)
    g = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    scale = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    pf.step(lambda: particles(g), penalty=lambda: scale * particles.x.square().sum(1))
    x1 = x0 - 0.1 * (g + 2 * scale[:, None] * x0)
    torch.testing.assert_close(particles.x.detach(), x1)
    torch.testing.assert_close(pf.log_weights, (-(x0 @ g + x1 @ g) / 2).log_softmax(0))


@pytest.mark.parametrize("weighting", ["trapezoid", "linearized"])
def test_a_penalty_may_touch_parameters_that_the_loss_does_not(weighting: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

        def forward(self, g: Tensor) -> Tensor:
            return g @ self.used

    particles = ol.Ensemble(Two, 3).double()
    before = copy.deepcopy(particles.state_dict())
    pf = ol.WeightedParticleFilter(particles, sgd(particles), weighting=weighting)
    g = torch.ones(3, dtype=torch.float64)
    pf.step(lambda: particles(g), penalty=lambda: particles.unused.sum(1))
    expected = -(before["used"].sum(1) * 2 - 0.3) / 2
    torch.testing.assert_close(pf.log_weights, expected.log_softmax(0))
    torch.testing.assert_close(particles.unused.detach(), before["unused"] - 0.1)


@pytest.mark.parametrize("weighting", ["trapezoid", "linearized"])
def test_a_penalty_may_use_the_closures_outputs(weighting: str) -> None:
    """Distillation does: one forward pass for both."""
    shared, apart = ol.Ensemble(mlp, 3).double(), ol.Ensemble(mlp, 3).double()
    x, held = X.double(), {}

    def closure() -> Tensor:
        held["outputs"] = shared(x)
        return cross_entropy(held["outputs"], Y)

    pf = ol.WeightedParticleFilter(shared, sgd(shared), weighting=weighting)
    pf.step(closure, penalty=lambda: held["outputs"].square().mean((1, 2)))
    other = ol.WeightedParticleFilter(apart, sgd(apart), weighting=weighting)
    other.step(lambda: cross_entropy(apart(x), Y), penalty=lambda: apart(x).square().mean((1, 2)))
    for name, tensor in apart.state_dict().items():
        torch.testing.assert_close(shared.state_dict()[name], tensor, rtol=0, atol=1e-12)
    torch.testing.assert_close(pf.log_weights, other.log_weights, rtol=0, atol=1e-12)


def test_consolidations_see_the_gradient_and_the_move() -> None:
    particles = ol.Ensemble(mlp, 3)
    seen = []

    class Spy:
        def before_update(self) -> None:
            self.old = [p.detach().clone() for p in particles.parameters()]
            self.gradients = [p.grad.clone() for p in particles.parameters()]

        def after_update(self) -> None:
            for p, old, g in zip(particles.parameters(), self.old, self.gradients, strict=True):
                torch.testing.assert_close(p.detach(), old - 0.1 * g)
            seen.append(True)

    pf = ol.WeightedParticleFilter(particles, sgd(particles))
    pf.register(Spy())
    for x, y in batches(2):
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
    assert seen == [True, True]


def test_autocast_inside_a_closure_is_fine() -> None:
    particles = ol.Ensemble(cnn, 3)
    pf = ol.WeightedParticleFilter(particles, sgd(particles))
    x, y = next(batches(1, (4, 2, 8, 8)))

    def closure() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = particles(x)
            assert outputs.dtype == torch.bfloat16
            return cross_entropy(outputs, y)

    info = pf.step(closure)
    assert info.loss_before.dtype == torch.float32
    full = torch.stack([F.cross_entropy(m(x), y) for m in ol.Ensemble(cnn, 3)])
    torch.testing.assert_close(info.loss_before, full.detach(), rtol=0.05, atol=0.05)


class Product(nn.Module):
    """A weight that is no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.weight = nn.Linear(6, 8), nn.Parameter(torch.randn(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.inlet(x).relu() @ self.weight


@pytest.mark.parametrize("kind", ["weighted", "bootstrap"])
def test_the_second_evaluation_in_bf16_sees_the_particles_moved(kind: str) -> None:
    particles = ol.Ensemble(Product, 3, precision="bf16")
    if kind == "weighted":
        adam = torch.optim.Adam(particles.parameters(), lr=0.1)
        pf = ol.WeightedParticleFilter(particles, adam)
    else:
        pf = ol.BootstrapParticleFilter(particles, perturbation=0.5, variant="paper")
    info = pf.step(lambda: cross_entropy(particles(X), Y))
    torch.testing.assert_close(info.loss_after, cross_entropy(particles(X), Y).detach())


def test_a_copied_filter_goes_its_own_way() -> None:
    particles = ol.Ensemble(dropout_mlp, 3)
    pf = ol.WeightedParticleFilter(particles, torch.optim.Adam(particles.parameters(), lr=0.01))
    pf.step(lambda: cross_entropy(particles(X), Y))
    twin = copy.deepcopy(pf)
    before = copy.deepcopy(pf.particles.state_dict())
    twin.step(lambda: cross_entropy(twin.particles(X), Y))
    for name, tensor in before.items():
        assert torch.equal(pf.particles.state_dict()[name], tensor)
    pf.step(lambda: cross_entropy(pf.particles(X), Y))
    for name, tensor in pf.particles.state_dict().items():
        assert torch.equal(twin.particles.state_dict()[name], tensor)
    assert torch.equal(pf.log_weights, twin.log_weights)
