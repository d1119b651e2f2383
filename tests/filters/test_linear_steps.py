"""Plain descent never writes a Linear layer's gradient down; the result is as if it had."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.filters.oracles import batches, cross_entropy, mlp
from torch import Tensor, nn

import orderless as ol


def pair(make, n: int = 4, **options):
    """The same ensemble twice: for plain SGD (factors) and for SGD that must write gradients."""
    factored = ol.Ensemble(make, n).double()
    written = copy.deepcopy(factored)
    written.fast = False
    return [
        ol.WeightedParticleFilter(p, torch.optim.SGD(p.parameters(), lr=0.1), **options)
        for p in (factored, written)
    ]


def assert_equal_filters(left, right, tolerance: float = 1e-12) -> None:
    for name, tensor in right.particles.state_dict().items():
        ours = left.particles.state_dict()[name]
        torch.testing.assert_close(ours, tensor, rtol=0, atol=tolerance, msg=name)
    torch.testing.assert_close(left.log_weights, right.log_weights, rtol=0, atol=tolerance)
    torch.testing.assert_close(left.log_evidence, right.log_evidence, rtol=0, atol=tolerance)


def step_both(filters, losses, count: int = 3, penalty=None) -> None:
    for x, y in batches(count, dtype=torch.float64):
        for pf in filters:
            own = None if penalty is None else partial(penalty, pf.particles)
            pf.step(partial(losses, pf.particles, x, y), penalty=own)


def plain(particles, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(particles(x), y)


def squared_size(particles) -> Tensor:
    return sum(p.square().flatten(1).sum(1) for p in particles.parameters())


def test_a_linear_layers_gradient_is_never_written_down() -> None:
    factored, written = pair(mlp)
    step_both((factored, written), plain)
    assert all(p.grad is None for p in factored.particles.parameters())
    assert all(p.grad is not None for p in written.particles.parameters())
    assert_equal_filters(factored, written)


def test_a_loss_that_reads_the_parameters_itself_sees_them_moved() -> None:
    """An L2 term in the closure: its second evaluation is at the new positions, too."""
    filters = pair(mlp)
    step_both(filters, lambda p, x, y: plain(p, x, y) + 0.1 * squared_size(p))
    assert_equal_filters(*filters)


@pytest.mark.parametrize("weigh_penalty", [False, True])
def test_a_penalty_on_the_parameters(weigh_penalty: bool) -> None:
    filters = pair(mlp, weigh_penalty=weigh_penalty)
    step_both(filters, plain, penalty=lambda p: 0.1 * squared_size(p))
    assert_equal_filters(*filters)


def test_clipping_counts_all_of_a_gradient_once() -> None:
    filters = pair(mlp, max_grad_norm=0.1)
    step_both(filters, lambda p, x, y: plain(p, x, y) + 0.1 * squared_size(p))
    assert_equal_filters(*filters)


class TiedTokens(nn.Module):
    """The output layer is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 6)
        self.mix = nn.Linear(6, 6)
        self.outlet = nn.Linear(6, 3, bias=False)
        self.outlet.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x[:, :3].argmax(1)).long()
        return self.outlet(torch.tanh(self.mix(self.embedding(tokens))) + x)


class SharedBias(nn.Module):
    """Two weights, one bias; and one weight under two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.bias = self.a.bias
        self.c = nn.Linear(6, 6)
        self.c.weight = self.a.weight
        self.outlet = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outlet(self.c(torch.tanh(self.b(torch.tanh(self.a(x))))))


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.outlet = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outlet(torch.tanh(self.block(torch.tanh(self.block(x)))))


class OnSequences(nn.Module):
    """Linear layers on `[B, T, I]`, on a single vector, and by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x.unflatten(1, (2, 3))).flatten(1)
        vector = F.linear(hidden[0, :4], self.b.weight, self.b.bias)
        return F.linear(input=hidden + vector.repeat(2), weight=self.c.weight, bias=self.c.bias)


@pytest.mark.parametrize("make", [TiedTokens, SharedBias, UsedTwice, OnSequences])
@pytest.mark.parametrize("max_grad_norm", [None, 0.1], ids=["", "clipped"])
def test_layers_used_in_odd_ways(make, max_grad_norm: float | None) -> None:
    filters = pair(make, max_grad_norm=max_grad_norm)
    step_both(filters, plain)
    assert_equal_filters(*filters)


@pytest.mark.parametrize("make", [TiedTokens, SharedBias, UsedTwice])
def test_layers_used_in_odd_ways_in_bf16(make) -> None:
    filters = pair(make, max_grad_norm=0.1)
    for pf in filters:
        pf.particles.float().precision = "bf16"
    for x, y in batches(3):
        for pf in filters:
            pf.step(partial(plain, pf.particles, x, y))
    # three steps of a length of 0.01, from gradients of which two or three digits are known
    for ours, theirs in zip(*(pf.particles.parameters() for pf in filters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-4)


def test_gradients_that_a_closure_takes_for_itself_do_not_move_anything() -> None:
    """An input-gradient penalty: the inner gradient is part of the loss, not of the step."""

    def losses(particles, x: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            outputs = particles(x)
            (slope,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
        return cross_entropy(outputs, y) + 0.1 * slope.square().sum()

    filters = pair(mlp)
    step_both(filters, losses)
    assert_equal_filters(*filters)


@pytest.mark.parametrize("frozen", ["0.bias", "0.weight", "2.bias", "2.weight"])
def test_a_frozen_parameter_stays(frozen: str) -> None:
    filters = pair(mlp)
    for pf in filters:
        pf.particles.get_parameter(frozen).requires_grad_(False)
    before = filters[0].particles.get_parameter(frozen).clone()
    step_both(filters, plain)
    assert torch.equal(filters[0].particles.get_parameter(frozen), before)
    assert_equal_filters(*filters)


def test_an_optimizer_of_some_layers_moves_only_those() -> None:
    particles = ol.Ensemble(mlp, 3)
    head = particles.get_submodule("2").parameters()
    pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(head, lr=0.1))
    before = copy.deepcopy(particles.state_dict())
    for x, y in batches(2):
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
    assert torch.equal(particles.state_dict()["0.weight"], before["0.weight"])
    assert not torch.equal(particles.state_dict()["2.weight"], before["2.weight"])
    assert not torch.equal(particles.state_dict()["2.bias"], before["2.bias"])


def test_an_optimizers_own_hooks_are_called() -> None:
    particles = ol.Ensemble(mlp, 3)
    optimizer, calls = torch.optim.SGD(particles.parameters(), lr=0.1), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    pf = ol.WeightedParticleFilter(particles, optimizer)
    (x, y), *_ = batches(1)
    pf.step(lambda: cross_entropy(particles(x), y))
    assert calls == [1]


def test_groups_have_their_own_rates() -> None:
    filters = []
    for fast in (True, False):
        particles = ol.Ensemble(mlp, 3, fast=fast).double()
        groups = [
            {"params": list(particles.get_submodule("0").parameters()), "lr": 0.3},
            {"params": list(particles.get_submodule("2").parameters())},
        ]
        filters.append(ol.WeightedParticleFilter(particles, torch.optim.SGD(groups, lr=0.01)))
    step_both(filters, plain)
    assert_equal_filters(*filters)
