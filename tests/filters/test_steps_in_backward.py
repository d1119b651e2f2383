"""Plain SGD takes its steps inside the backward pass of Linear layers, and is a plain loop."""

import pytest
import torch
import torch.nn.functional as F
from tests.common import (
    OPTIMIZERS,
    assert_like_the_loop,
    batches,
    cross_entropy,
    gradient_filter,
    mlp,
    take_step,
)
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.optimizer import register_optimizer_step_post_hook

import orderless as ol
from orderless.ensemble import linear

DATA = list(batches(4, dtype=torch.float64))


def assert_steps_are_those_of_the_loop(make, make_optimizer=OPTIMIZERS["sgd"], **options) -> None:
    assert_like_the_loop(ol.Ensemble(make, 3).double(), DATA, make_optimizer, **options)


def weighted(**options) -> ol.WeightedParticleFilter:
    return gradient_filter(dtype=torch.float64, **options)


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_a_linear_layers_gradient_is_written_only_if_somebody_reads_it(max_grad_norm):
    pf = weighted(max_grad_norm=max_grad_norm)
    take_step(pf, *DATA[0])
    written = [p.grad is not None for p in pf.particles.parameters()]
    assert written == [max_grad_norm is not None] * 4


@pytest.mark.parametrize("rates", [(0.1, 0.01), (0.1, 0.0), (0.0, 0.1)], ids=str)
def test_a_bias_moves_by_its_own_learning_rate(rates: tuple[float, float]) -> None:
    def by_kind(parameters) -> SGD:
        parameters = list(parameters)  # weight, bias, weight, bias
        kinds = zip((parameters[::2], parameters[1::2]), rates, strict=True)
        return SGD([{"params": params, "lr": lr} for params, lr in kinds])

    assert_steps_are_those_of_the_loop(mlp, by_kind)


class Shared(nn.Module):
    """Two weights have one bias, one weight two biases, one layer is used twice and, on a single
    vector, by hand. (Embeddings that are tied to layers are in test_same_as_a_loop.py.)"""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.bias = self.a.bias
        self.c.weight = self.a.weight
        self.outlet = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x))))))
        vector = F.linear(hidden[0], self.b.weight, self.b.bias)
        return F.linear(
            input=self.a(hidden) + vector, weight=self.outlet.weight, bias=self.outlet.bias
        )


class FromParameters(nn.Module):
    """Linear layers whose inputs are parameters: a hypernetwork, learned queries, a table."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.queries = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(4, 6))
        self.table = nn.Embedding(7, 6)
        self.hyper, self.of_queries = nn.Linear(5, 18), nn.Linear(6, 3)
        self.of_table = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = self.hyper(self.code).view(6, 3)
        queried = self.of_queries(self.queries).mean(0)
        queried = queried + self.of_queries(self.queries.detach()).sum(0)
        tabled = self.of_table(self.table.weight[2:5]).sum(0)
        return x @ made + queried + torch.tanh(self.of_table(self.table.weight)).sum(0) + tabled


class ReadsItsWeight(nn.Module):
    """Values of a layer's weight and bias enter the loss without a gradient."""

    def __init__(self, read) -> None:
        super().__init__()
        self.a, self.b, self.read = nn.Linear(6, 6), nn.Linear(6, 3), read

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x))) * self.read(self.a, x)


def jacobian(layer: nn.Module, x: Tensor) -> Tensor:
    """A derivative of the network's own, through which no gradient goes."""
    slopes = torch.vmap(torch.func.jacrev(lambda row: layer(row).tanh()))(x)
    return slopes.detach().sum()


@torch.no_grad()
def without_bias(layer: nn.Module, x: Tensor) -> Tensor:
    scale = F.linear(x, layer.weight).square().mean()
    return scale + F.linear(x, torch.ones_like(layer.weight), layer.bias).mean()


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x += 1.0
        return x


def between(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), layer, nn.Linear(8, 3))


NETWORKS = {
    "shared": Shared,
    "fed by parameters": FromParameters,
    "weight read": lambda: ReadsItsWeight(lambda layer, x: layer.weight.detach().square().sum()),
    "weight used": lambda: ReadsItsWeight(lambda a, x: F.linear(x, a.weight.detach()).mean()),
    "bias read": lambda: ReadsItsWeight(lambda layer, x: layer.bias.detach().exp().sum()),
    "without bias": lambda: ReadsItsWeight(without_bias),
    "own derivative": lambda: ReadsItsWeight(jacobian),
    "ReLU in place": lambda: between(nn.ReLU(inplace=True)),
    "tanh": lambda: between(nn.Tanh()),
    "adds in place": lambda: between(Adds()),
}


@pytest.mark.parametrize("max_grad_norm", [None, 0.1], ids=["", "clipped"])
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_used_in_odd_ways(name: str, max_grad_norm: float | None) -> None:
    assert_steps_are_those_of_the_loop(NETWORKS[name], max_grad_norm=max_grad_norm)


def sizes(network) -> Tensor:
    """sum theta^2 of a network, or of each particle."""
    squares = [p.square() for p in network.parameters()]
    if isinstance(network, ol.Ensemble):
        return sum(square.flatten(1).sum(1) for square in squares)
    return sum(square.sum() for square in squares)


def reads(name: str, alias):
    """A loss that reads a parameter outside of the network, where only the values tell of it."""

    def losses(network, x: Tensor, y: Tensor, loss) -> Tensor:
        value = alias(network.get_parameter(name))
        dims = (-2, -1) if name.endswith("weight") else -1
        return loss(network(x), y) * value.square().sum(dims)

    return losses


def slope_penalty(network, x: Tensor, y: Tensor, loss) -> Tensor:
    """The inner gradient is part of the loss, not of the step."""
    with torch.enable_grad():
        each = x.expand(3, *x.shape) if isinstance(network, ol.Ensemble) else x
        each = each.clone().requires_grad_()
        options = {"per_particle": True} if isinstance(network, ol.Ensemble) else {}
        outputs = network(each, **options)
        (slope,) = torch.autograd.grad(outputs.square().sum(), each, create_graph=True)
    return loss(outputs, y) + 0.1 * slope.square().sum((-2, -1))


def adversarial(network, x: Tensor, y: Tensor, loss) -> Tensor:
    """The loss on examples that the network itself, as it is now, finds hard (FGSM)."""
    options = {"per_particle": True} if isinstance(network, ol.Ensemble) else {}
    each = x.expand(3, *x.shape) if options else x
    with torch.enable_grad():
        each = each.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(network(each, **options), y).sum(), each)
    return loss(network(each.detach() + 0.1 * slope, **options), y)


LOSSES = {
    "L2 term": lambda network, x, y, loss: loss(network(x), y) + 0.1 * sizes(network),
    "weight": reads("0.weight", Tensor.detach),
    "bias": reads("0.bias", Tensor.detach),
    "data": reads("0.weight", lambda p: p.data),
    "numpy": reads("0.weight", lambda p: torch.from_numpy(p.detach().numpy())),
    "gradient of inputs": slope_penalty,
    "examples of its own": adversarial,
}


@pytest.mark.parametrize("max_grad_norm", [None, 0.1], ids=["", "clipped"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_read_the_parameters_see_them_moved(name: str, max_grad_norm) -> None:
    losses = LOSSES[name]
    assert_steps_are_those_of_the_loop(mlp, losses=losses, max_grad_norm=max_grad_norm)


def test_the_first_layers_outputs_after_a_step_need_no_second_product(monkeypatch) -> None:
    """They follow from those before; the loop's losses above say that they are right."""
    widths = []
    product = linear._product

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        widths.append(weight.shape[-1])
        return product(x, weight, bias)

    monkeypatch.setattr(linear, "_product", counted)
    take_step(weighted(), *DATA[0])
    assert widths == [6, 8, 8]


def add_one(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1.0)


class Changes:
    """A hook that changes a weight, and autograd does not see it."""

    reads_gradients = False

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def before_update(self) -> None: ...

    def after_update(self) -> None:
        self.weight.data.mul_(0.5)


@pytest.mark.parametrize("what", ["x", "another x", "0.weight", "0.bias", "hook"])
def test_losses_after_a_step_see_what_has_changed_since(what: str) -> None:
    pf = weighted()
    ((x, y),) = batches(1, dtype=torch.float64)
    inputs = [x]
    if what == "hook":
        pf.register(Changes(pf.particles.get_parameter("0.weight")))
    passes = []

    def closure() -> Tensor:
        if passes and what == "another x":
            inputs[0] = x + 1.0
        elif passes and what != "hook":
            add_one(x if what == "x" else pf.particles.get_parameter(what))
        passes.append(None)
        return cross_entropy(pf.particles(inputs[0]), y)

    after = pf.step(closure).loss_after
    expected = cross_entropy(pf.particles(inputs[0]), y)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)


def test_a_hook_on_a_weight_is_called() -> None:
    """It masks the gradient, as pruning does: half of the first layer stays."""
    pf = weighted()
    weight = pf.particles.get_parameter("0.weight")
    mask = (torch.arange(6) % 2).double()
    weight.register_hook(lambda gradient: gradient * mask)
    before = weight.detach().clone()
    take_step(pf, *DATA[0])
    stayed = weight.detach() == before
    assert torch.equal(stayed, (mask == 0).expand_as(stayed))


@pytest.mark.parametrize("frozen", ["0.bias", "0.weight", "2.bias", "2.weight"])
@pytest.mark.parametrize("how", ["no gradient", "not the optimizer's"])
def test_what_is_not_trained_stays(frozen, how):
    particles = ol.Ensemble(mlp, 3).double()
    parameters = dict(particles.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    if how == "no gradient":
        parameters[frozen].requires_grad_(False)
    else:
        del parameters[frozen]
    pf = ol.WeightedParticleFilter(particles, OPTIMIZERS["sgd"](parameters.values()))
    take_step(pf, *DATA[0])
    stayed = [name for name, p in particles.named_parameters() if torch.equal(p, before[name])]
    assert stayed == [frozen]


@pytest.mark.parametrize("who", ["own hook", "global hook", "wrapped step"])
def test_whoever_listens_to_the_optimizer_is_called_with_gradients(who: str):
    pf = weighted()
    seen = []

    def look(*_: object) -> None:
        seen.append(all(p.grad is not None for p in pf.particles.parameters()))

    inner = pf.optimizer.step
    if who == "own hook":
        pf.optimizer.register_step_post_hook(look)
    elif who == "wrapped step":
        pf.optimizer.step = lambda: (inner(), look())
    handle = register_optimizer_step_post_hook(look) if who == "global hook" else None
    take_step(pf, *DATA[0])
    if handle is not None:
        handle.remove()
    assert seen == [True]
