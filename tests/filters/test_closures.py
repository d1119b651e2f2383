"""How often a closure is called, under which noise, and what the penalty may do."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.common import (
    OPTIMIZERS,
    Point,
    assert_identical,
    batches,
    cnn,
    cross_entropy,
    dropout_mlp,
    gradient_filter,
    take_step,
)
from torch import Tensor, nn
from torch.optim import SGD
from torch.testing import assert_close

import orderless as ol

X, Y = next(batches(1))
STILL = partial(SGD, lr=0.0)
DOUBLE = {"dtype": torch.float64}


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (ol.WeightedParticleFilter, {}, [True, False]),
        (ol.WeightedParticleFilter, {"weighting": "linearized"}, [True]),
        (ol.AveragingParticles, {}, [True]),
    ],
)
def test_called_once_with_grad_and_for_the_trapezoid_once_without(kind, options, expected):
    pf = gradient_filter(kind=kind, **options)
    grad_modes = []

    def closure() -> Tensor:
        grad_modes.append(torch.is_grad_enabled())
        return cross_entropy(pf.particles(X), Y)

    with torch.no_grad():  # whatever the caller's mode is
        pf.step(closure)
    assert grad_modes == expected


def test_both_evaluations_use_the_same_dropout_mask_and_steps_use_others():
    """lr = 0: only another mask could make the second loss differ from the first."""
    pf = gradient_filter(dropout_mlp, 4, STILL)
    infos = [take_step(pf, X, Y) for _ in range(3)]
    for info in infos:
        assert torch.equal(info.loss_before, info.loss_after)
    assert not torch.equal(infos[0].loss_before, infos[1].loss_before)
    assert not torch.equal(infos[1].loss_before, infos[2].loss_before)


def test_several_closures_and_a_weighed_penalty_replay_their_own_masks():
    pf = gradient_filter(dropout_mlp, 4, STILL, weigh_penalty=True)
    seen: dict[str, list[Tensor]] = {"first": [], "second": [], "penalty": []}

    def closure(name: str) -> Tensor:
        seen[name].append(cross_entropy(pf.particles(X), Y))
        return seen[name][-1]

    first, second, penalty = (partial(closure, name) for name in seen)
    info = pf.step([first, second], penalty=penalty)
    for before, after in seen.values():
        assert torch.equal(before, after)
    assert not torch.equal(seen["first"][0], seen["second"][0])
    assert not torch.equal(seen["first"][0], seen["penalty"][0])
    assert torch.equal(info.loss_before, info.loss_after)
    assert_close(info.penalty, seen["penalty"][0].detach())


def test_torchs_own_random_numbers_are_repeated_and_then_go_on():
    pf = gradient_filter()
    drawn = []

    def closure() -> Tensor:
        drawn.append(torch.rand(()).item())
        return cross_entropy(pf.particles(X), Y)

    torch.manual_seed(0)
    first, second = (torch.rand(()).item() for _ in range(2))
    torch.manual_seed(0)
    pf.step(closure)
    pf.step(closure)
    assert drawn == [first, first, second, second]


class Two(Point):
    """A point, and another one that the network does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.randn(3))


@pytest.mark.parametrize("weighting", ["trapezoid", "linearized"])
def test_gradients_see_the_penalty_and_weights_do_not(weighting):
    """x moves by loss + penalty, also where the loss has no part of it; log w falls by the loss at
    both ends of that move."""
    pf = gradient_filter(Two, 4, weighting=weighting, **DOUBLE)
    particles = pf.particles
    x0, unused = (p.detach().clone() for p in particles.parameters())
    g = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    scale = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)

    def penalty() -> Tensor:
        return scale * particles.x.square().sum(1) + particles.unused.sum(1)

    pf.step(lambda: particles(g), penalty=penalty)
    x1 = x0 - 0.1 * (g + 2 * scale[:, None] * x0)
    assert_close(particles.x.detach(), x1)
    assert_close(particles.unused.detach(), unused - 0.1)
    assert_close(pf.log_weights, (-(x0 @ g + x1 @ g) / 2).log_softmax(0))


@pytest.mark.parametrize("weighting", ["trapezoid", "linearized"])
def test_a_penalty_may_use_the_closures_outputs(weighting):
    """Distillation does: one forward pass for both."""
    shared, apart = (gradient_filter(weighting=weighting, **DOUBLE) for _ in range(2))
    x, held = X.double(), {}

    def closure() -> Tensor:
        held["outputs"] = shared.particles(x)
        return cross_entropy(held["outputs"], Y)

    shared.step(closure, penalty=lambda: held["outputs"].square().mean((1, 2)))
    apart.step(
        lambda: cross_entropy(apart.particles(x), Y),
        penalty=lambda: apart.particles(x).square().mean((1, 2)),
    )
    ours, theirs = shared.particles.state_dict(), apart.particles.state_dict()
    assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert_close(shared.log_weights, apart.log_weights, rtol=0, atol=1e-12)


def test_consolidations_see_the_gradient_and_the_move():
    pf = gradient_filter()
    parameters = list(pf.particles.parameters())
    seen = []

    class Spy:
        def before_update(self) -> None:
            self.expected = [p.detach() - 0.1 * p.grad for p in parameters]

        def after_update(self) -> None:
            assert_close([p.detach() for p in parameters], self.expected)
            seen.append(True)

    pf.register(Spy())
    for _ in range(2):
        take_step(pf, X, Y)
    assert seen == [True, True]


def test_autocast_inside_a_closure_is_fine():
    pf = gradient_filter(cnn)
    x, y = next(batches(1, (4, 2, 8, 8)))

    def closure() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = pf.particles(x)
            assert outputs.dtype == torch.bfloat16
            return cross_entropy(outputs, y)

    full = torch.stack([F.cross_entropy(network(x), y) for network in pf.particles])
    info = pf.step(closure)
    assert info.loss_before.dtype == torch.float32
    assert_close(info.loss_before, full.detach(), rtol=0.05, atol=0.05)


class Product(nn.Module):
    """A weight that is no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.weight = nn.Linear(6, 8), nn.Parameter(torch.randn(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.inlet(x).relu() @ self.weight


MOVERS = {
    "weighted": lambda p: ol.WeightedParticleFilter(p, OPTIMIZERS["adam"](p.parameters())),
    "bootstrap": lambda p: ol.BootstrapParticleFilter(p, perturbation=0.5, variant="paper"),
}


@pytest.mark.parametrize("kind", MOVERS)
def test_the_second_evaluation_in_bf16_sees_the_particles_moved(kind):
    pf = MOVERS[kind](ol.Ensemble(Product, 3, precision="bf16"))
    info = take_step(pf, X, Y)
    assert not torch.equal(info.loss_after, info.loss_before)
    assert_close(info.loss_after, cross_entropy(pf.particles(X), Y).detach())


def test_a_copied_filter_goes_its_own_way():
    pf = gradient_filter(dropout_mlp, optimizer=OPTIMIZERS["adam"])
    take_step(pf, X, Y)
    twin = copy.deepcopy(pf)
    before = copy.deepcopy(pf.state_dict())
    take_step(twin, X, Y)
    assert_identical(pf.state_dict(), before)
    take_step(pf, X, Y)
    assert_identical(pf.state_dict(), twin.state_dict())
