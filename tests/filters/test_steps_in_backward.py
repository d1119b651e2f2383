"""Plain SGD takes its steps inside the backward pass, and still is a plain loop."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.filters.oracles import assert_same_networks, batches, cross_entropy, loop, mlp
from torch import Tensor, nn

import orderless as ol

TOLERANCE = 1e-9


def sgd(parameters) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1)


def assert_like_the_loop(make, losses=None, make_optimizer=sgd, n: int = 3, **options) -> None:
    """Four steps; `losses(network or particles, x, y, loss)` as one would write it for either."""
    losses = losses or (lambda network, x, y, loss: loss(network(x), y))
    particles = ol.Ensemble(make, n).double()
    data = list(batches(4, dtype=torch.float64))
    modules, log_weights = loop(
        particles,
        make_optimizer,
        data,
        loss=lambda module, x, y: losses(module, x, y, F.cross_entropy),
        **options,
    )
    pf = ol.WeightedParticleFilter(particles, make_optimizer(particles.parameters()), **options)
    for x, y in data:
        pf.step(lambda x=x, y=y: losses(particles, x, y, cross_entropy))
    assert_same_networks(particles, modules, TOLERANCE)
    torch.testing.assert_close(pf.log_weights, log_weights, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rates", [(0.1, 0.01), (0.1, 0.0), (0.0, 0.1)], ids=str)
def test_a_bias_moves_by_its_own_learning_rate(rates: tuple[float, float]) -> None:
    def by_kind(parameters) -> torch.optim.SGD:
        weights, biases = [], []
        for place, p in enumerate(parameters):  # weight, bias, weight, bias
            (biases if place % 2 else weights).append(p)
        pairs = zip((weights, biases), rates, strict=True)
        return torch.optim.SGD([{"params": p, "lr": lr} for p, lr in pairs])

    assert_like_the_loop(mlp, make_optimizer=by_kind)


class FromParameters(nn.Module):
    """Linear layers whose inputs are parameters: a hypernetwork, learned queries, a table."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.queries = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(4, 6))
        self.table = nn.Embedding(7, 6)
        self.hyper, self.of_queries, self.of_table = (
            nn.Linear(5, 18),
            nn.Linear(6, 3),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        made = self.hyper(self.code).view(6, 3)
        queried = self.of_queries(self.queries).mean(0)
        tabled = self.of_table(self.table.weight[2:5]).sum(0)
        return x @ made + queried + torch.tanh(self.of_table(self.table.weight)).sum(0) + tabled


def test_a_linear_layer_may_be_fed_by_parameters() -> None:
    assert_like_the_loop(FromParameters)


def test_a_linear_layer_may_be_fed_by_a_detached_parameter() -> None:
    class Detached(FromParameters):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.of_queries(self.queries.detach()).sum(0)

    assert_like_the_loop(Detached)


class ReadsItsWeight(nn.Module):
    """Values of a layer's weight and bias enter the loss without a gradient."""

    def __init__(self, read) -> None:
        super().__init__()
        self.a, self.b, self.read = nn.Linear(6, 6), nn.Linear(6, 3), read

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x))) * self.read(self.a, x)


@pytest.mark.parametrize(
    "read",
    [
        lambda layer, x: layer.weight.detach().square().sum(),
        lambda layer, x: F.linear(x, layer.weight.detach()).mean(),
        lambda layer, x: layer.bias.detach().exp().sum(),
        lambda layer, x: torch.stack([layer.bias.detach(), x[0]]).sum(),
    ],
)
def test_a_weight_may_be_read_without_a_gradient(read) -> None:
    assert_like_the_loop(lambda: ReadsItsWeight(read))


def test_a_layer_may_be_used_without_its_bias_where_nobody_wants_gradients() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                scale = F.linear(x, self.a.weight).square().mean()
                scale = scale + F.linear(x, torch.ones_like(self.a.weight), self.a.bias).mean()
            return self.b(self.a(x).tanh()) * scale

    assert_like_the_loop(Asks)


def test_closures_may_fill_one_buffer() -> None:
    """Accumulation: x of the first closure is gone when the second has filled the buffer."""
    particles = ol.Ensemble(mlp, 3).double()
    modules, log_weights = loop(
        particles,
        sgd,
        list(batches(3, (8, 6), torch.float64)),
        loss=lambda m, x, y: sum(
            F.cross_entropy(m(part), label)
            for part, label in zip(x.split(4), y.split(4), strict=True)
        ),
    )
    pf = ol.WeightedParticleFilter(particles, sgd(particles.parameters()))
    buffer = torch.empty(4, 6, dtype=torch.float64)
    for x, y in batches(3, (8, 6), torch.float64):
        pf.step(
            [
                lambda part=part, label=label: cross_entropy(particles(buffer.copy_(part)), label)
                for part, label in zip(x.split(4), y.split(4), strict=True)
            ]
        )
    assert_same_networks(particles, modules, TOLERANCE)
    torch.testing.assert_close(pf.log_weights, log_weights, rtol=0, atol=TOLERANCE)


def adversarial(network, x: Tensor, y: Tensor, loss) -> Tensor:
    """The loss on examples that the network itself, as it is now, finds hard (FGSM)."""
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(network(x), y).sum(), x)
    return loss(network(x.detach() + 0.1 * slope), y)


def test_examples_may_be_made_inside_the_closure() -> None:
    """One particle at a time sees its own gradient, so each gets a closure over its own network."""
    particles = ol.Ensemble(mlp, 3).double()
    data = list(batches(4, dtype=torch.float64))
    modules, log_weights = loop(
        particles, sgd, data, loss=lambda m, x, y: adversarial(m, x, y, F.cross_entropy)
    )
    pf = ol.WeightedParticleFilter(particles, sgd(particles.parameters()))

    def own(x: Tensor) -> Tensor:
        return particles(x, per_particle=True)

    for x, y in data:
        each = x.expand(3, *x.shape)
        pf.step(lambda each=each, y=y: adversarial(own, each, y, cross_entropy))
    assert_same_networks(particles, modules, TOLERANCE)
    torch.testing.assert_close(pf.log_weights, log_weights, rtol=0, atol=TOLERANCE)


def test_examples_may_be_made_in_a_buffer() -> None:
    """In the second evaluation the buffer holds other examples than those of the gradient."""
    particles = ol.Ensemble(mlp, 3).double()
    written = copy.deepcopy(particles)
    written.fast = False
    results = []
    for p in (particles, written):
        buffer = torch.zeros(4, 6, dtype=torch.float64)
        pf = ol.WeightedParticleFilter(p, sgd(p.parameters()))
        for x, y in batches(3, dtype=torch.float64):

            def closure(p=p, x=x, y=y, buffer=buffer) -> Tensor:
                with torch.enable_grad():
                    leaf = x.clone().requires_grad_()
                    (slope,) = torch.autograd.grad(cross_entropy(p(leaf), y).sum(), leaf)
                return cross_entropy(p(buffer.copy_(x + slope)), y)

            pf.step(closure)
        results.append([*p.state_dict().values(), pf.log_weights])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x += 1.0
        return x


@pytest.mark.parametrize("layer", [nn.ReLU(inplace=True), nn.Tanh(), Adds()], ids=repr)
def test_what_a_layer_returns_may_be_changed_in_place(layer: nn.Module) -> None:
    assert_like_the_loop(lambda: nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, 3)))


def test_a_hook_on_a_weight_is_called() -> None:
    """It masks the gradient, as pruning does: half of the first layer stays."""
    particles = ol.Ensemble(mlp, 3).double()
    weight = particles.get_parameter("0.weight")
    mask = (torch.arange(6) % 2).double()
    weight.register_hook(lambda gradient: gradient * mask)
    before = weight.detach().clone()
    pf = ol.WeightedParticleFilter(particles, sgd(particles.parameters()))
    for x, y in batches(2, dtype=torch.float64):
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
    stayed = weight.detach() == before
    assert torch.equal(stayed, (mask == 0).expand_as(stayed))


@pytest.mark.parametrize("read", ["weight", "bias"])
def test_a_closure_may_read_parameters_without_a_gradient(read: str) -> None:
    """Outside of the network, where nothing but the values tells of it."""

    def losses(network, x: Tensor, y: Tensor, loss) -> Tensor:
        value = network.get_parameter(f"0.{read}").detach()
        size = value.square().flatten(value.dim() - (2 if read == "weight" else 1)).sum(-1)
        return loss(network(x), y) * size

    assert_like_the_loop(mlp, losses)


@pytest.mark.parametrize(
    "alias",
    [Tensor.detach, lambda p: p.data, lambda p: torch.from_numpy(p.detach().numpy())],
    ids=["detached", "data", "numpy"],
)
def test_a_closure_may_read_a_view_of_a_parameter_that_was_made_long_before(alias) -> None:
    found = []
    for fast in (True, False):  # without it, parameters are written at once
        particles = ol.Ensemble(mlp, 3, fast=fast).double()
        pf = ol.WeightedParticleFilter(particles, sgd(particles.parameters()))
        view = alias(particles.get_parameter("0.weight"))
        for x, y in batches(3, dtype=torch.float64):
            size = lambda view=view: view.square().sum((-1, -2))  # noqa: E731
            pf.step(lambda p=particles, x=x, y=y, size=size: cross_entropy(p(x), y) * size())
        found.append(pf.log_weights)
    torch.testing.assert_close(*found, rtol=0, atol=TOLERANCE)


def test_a_network_may_read_a_layer_in_a_derivative_of_its_own() -> None:
    class Sensitive(nn.Module):
        """Scaled by its own Jacobian, through which no gradient goes."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            jacobian = torch.vmap(torch.func.jacrev(lambda row: self.a(row).tanh()))(x)
            return self.b(self.a(x).tanh() * jacobian.detach().sum(-1))

    assert_like_the_loop(Sensitive)
