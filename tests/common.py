"""What tests of several rooms share: small networks, data, filters, and a loop to compare with."""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.testing import assert_close

import orderless as ol

cross_entropy = ol.per_particle(F.cross_entropy)
OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "adam": partial(Adam, lr=0.01),
}


# ---------------------------------------------------------------------- networks and data


class Point(nn.Module):
    """A network that is nothing but a point x in d dimensions; given g it returns <g, x>."""

    def __init__(self, dimensions: int = 3) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(dimensions))

    def forward(self, g: Tensor) -> Tensor:
        return g @ self.x


def points(n: int = 5, seed: int = 0) -> ol.Ensemble:
    return ol.Ensemble(Point, n, seed=seed).double()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    """For images `[B, 2, 8, 8]`."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers of a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def batches(
    count: int, shape: tuple[int, ...] = (4, 6), dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        x = torch.randn(shape, generator=generator, dtype=dtype)
        yield x, torch.randint(0, 3, shape[:1], generator=generator)


# ---------------------------------------------------------------------- filters


def gradient_filter(
    make: Callable[[], nn.Module] = mlp,
    n: int = 3,
    optimizer: Callable[..., torch.optim.Optimizer] = OPTIMIZERS["sgd"],
    kind: Callable[..., ol.GradientFilter] = ol.WeightedParticleFilter,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **options: object,
) -> ol.GradientFilter:
    """A filter over n networks and an optimizer of theirs."""
    particles = ol.Ensemble(make, n, seed=seed).to(dtype)
    return kind(particles, optimizer(particles.parameters()), **options)


def take_step(pf: ol.filters.ParticleFilter, x: Tensor, y: Tensor) -> ol.filters.StepInfo:
    return pf.step(lambda: cross_entropy(pf.particles(x), y))


def train(
    pf: ol.filters.ParticleFilter, data: Iterable[tuple[Tensor, Tensor]]
) -> list[ol.filters.StepInfo]:
    """A step on every batch; the reports of all."""
    return [take_step(pf, x, y) for x, y in data]


Losses = Callable[[nn.Module, Tensor, Tensor, Callable], Tensor]


def usual(network: nn.Module, x: Tensor, y: Tensor, loss: Callable) -> Tensor:
    """Losses of one network or of all particles, written alike for both."""
    return loss(network(x), y)


def loop(
    particles: ol.Ensemble,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    data: Iterable[tuple[Tensor, Tensor]],
    losses: Callable[[nn.Module, Tensor, Tensor], Tensor],
    max_grad_norm: float | None = None,
    make_scheduler: Callable | None = None,
) -> tuple[list[nn.Module], Tensor]:
    """N modules, N optimizers, one after another: (the modules, their trapezoid log-weights)."""
    modules, log_weights = list(particles), []
    for module in modules:
        optimizer = make_optimizer(module.parameters())
        scheduler = make_scheduler(optimizer) if make_scheduler else None
        log_weight = 0.0
        for x, y in data:
            optimizer.zero_grad()
            before = losses(module, x, y)
            before.backward()
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)
            optimizer.step()
            with torch.no_grad():
                after = losses(copy.deepcopy(module), x, y)
            log_weight -= (before.item() + after.item()) / 2
            if scheduler is not None:
                scheduler.step()
        log_weights.append(log_weight)
    return modules, torch.tensor(log_weights, dtype=torch.float64).log_softmax(0)


def assert_like_the_loop(
    particles: ol.Ensemble,
    data: Iterable[tuple[Tensor, Tensor]],
    make_optimizer: Callable[..., torch.optim.Optimizer] = OPTIMIZERS["sgd"],
    *,
    losses: Losses = usual,
    loss: Callable = F.cross_entropy,
    max_grad_norm: float | None = None,
    make_scheduler: Callable | None = None,
) -> None:
    """Networks and weights of one filter in float64 are those of the loop, within 1e-9."""
    modules, log_weights = loop(
        particles, make_optimizer, data, partial(losses, loss=loss), max_grad_norm, make_scheduler
    )
    optimizer = make_optimizer(particles.parameters())
    pf = ol.WeightedParticleFilter(particles, optimizer, max_grad_norm=max_grad_norm)
    scheduler = make_scheduler(optimizer) if make_scheduler else None
    for x, y in data:
        pf.step(partial(losses, particles, x, y, ol.per_particle(loss)))
        if scheduler is not None:
            scheduler.step()
    assert_same_networks(particles, modules, 1e-9)
    assert_close(pf.log_weights, log_weights, rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- comparisons


def assert_same_networks(
    particles: ol.Ensemble, modules: Iterable[nn.Module], tolerance: float
) -> None:
    for ours, theirs in zip(particles, modules, strict=True):
        assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=tolerance)


def whole_state(pf: ol.filters.ParticleFilter) -> dict:
    """A copy of everything that a failed step must leave alone."""
    state = copy.deepcopy(pf.state_dict())
    # buffers that are not saved count too
    state["buffers"] = {n: b.clone() for n, b in pf.particles.named_buffers()}
    return state


def assert_identical(left: object, right: object) -> None:
    """Bit for bit, NaN equal to NaN, in nested dicts and lists."""
    if isinstance(left, Tensor):
        assert_close(left, right, rtol=0, atol=0, equal_nan=True)
        return
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_identical(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        for pair in zip(left, right, strict=True):
            assert_identical(*pair)
    else:
        assert left == right
