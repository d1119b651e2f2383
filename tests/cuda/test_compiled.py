"""A recorded step is the eager step, and a GPU computes what the CPU computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.testing import assert_close

import orderless as ol

Optimizers = {
    "sgd": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01, lr_decay=0.1),
}
cross_entropy = ol.per_particle(F.cross_entropy)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))


def cnn() -> nn.Module:
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)]
    return nn.Sequential(*body, *head)


def data(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, *shape, generator=generator)
    return x, torch.randint(3, (64,), generator=generator)


def train(
    make: Callable[[], nn.Module],
    optimizer: Callable,
    x: Tensor,
    y: Tensor,
    *,
    device: str = "cuda",
    compiled: bool = False,
    schedule: bool = False,
    **options: object,
) -> dict[str, Tensor]:
    particles = ol.Ensemble(make, 6, seed=1, device=device)
    pf = ol.WeightedParticleFilter(particles, optimizer(particles.parameters()), **options)
    step = pf.compile(lambda x, y: cross_entropy(particles(x), y))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(pf.optimizer, 0.5) if schedule else None
    losses = []
    for xs, ys in zip(x.to(device).split(8), y.to(device).split(8), strict=True):
        eager = lambda xs=xs, ys=ys: cross_entropy(particles(xs), ys)  # noqa: E731
        losses.append((step(xs, ys) if compiled else pf.step(eager)).loss_before)
        if scheduler is not None:
            scheduler.step()
    flat = torch.cat([p.detach().flatten() for p in particles.parameters()])
    result = {"positions": flat, "weights": pf.log_weights, "losses": torch.stack(losses)}
    return {name: tensor.cpu().double() for name, tensor in result.items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    for name, tensor in one.items():
        assert_close(tensor, other[name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("name", Optimizers)
def test_recorded_is_eager_also_with_a_scheduler(name: str, schedule: bool) -> None:
    x, y = data(20)
    eager = train(mlp, Optimizers[name], x, y, schedule=schedule)
    recorded = train(mlp, Optimizers[name], x, y, schedule=schedule, compiled=True)
    # Adam's capturable kernels round the bias correction differently
    assert_same(eager, recorded, 1e-5)


def test_linearized_and_clipped() -> None:
    x, y = data(20)
    options = {"weighting": "linearized", "max_grad_norm": 0.5}
    eager = train(mlp, Optimizers["sgd"], x, y, **options)
    assert_same(eager, train(mlp, Optimizers["sgd"], x, y, compiled=True, **options), 1e-6)


def test_convolutions_and_batch_norm() -> None:
    x, y = data(3, 16, 16)
    eager = train(cnn, Optimizers["sgd"], x, y)
    assert_same(eager, train(cnn, Optimizers["sgd"], x, y, compiled=True), 1e-5)


def test_dropout_is_the_same_on_both_devices() -> None:
    x, y = data(20)
    on_cpu = train(mlp, Optimizers["sgd"], x, y, device="cpu")
    assert_same(on_cpu, train(mlp, Optimizers["sgd"], x, y), 1e-4)  # float32 sums in another order


def test_a_dead_particle_stays_dead_and_the_last_one_is_reported() -> None:
    particles = ol.Ensemble(mlp, 3, device="cuda")
    optimizer = SGD(particles.parameters(), 0.1)
    pf = ol.WeightedParticleFilter(particles, optimizer, check_every=4)
    poison = torch.zeros(3, device="cuda")
    step = pf.compile(lambda x, y: cross_entropy(particles(x), y) + poison)
    x, y = (t[:8].cuda() for t in data(20))
    for _ in range(3):
        step(x, y)
    poison[1] = torch.nan
    assert step(x, y).alive.tolist() == [True, False, True]
    poison.zero_()
    assert step(x, y).alive.tolist() == [True, False, True]
    poison.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="no particle is left"):
        for _ in range(8):
            step(x, y)
    assert pf.log_weights.exp().sum().item() == pytest.approx(1.0)


def test_a_batch_at_an_odd_place_in_memory() -> None:
    """A first step there runs other kernels than one on a copy; a recording works on copies."""
    ends = []
    for start in (0, 1):
        x, y = (t[:8].cuda() for t in data(20))
        odd = torch.empty(x.numel() + 1, device="cuda")[start:][: x.numel()].view_as(x).copy_(x)
        particles = ol.Ensemble(mlp, 3, device="cuda")
        pf = ol.WeightedParticleFilter(particles, SGD(particles.parameters(), 0.1))
        step = pf.compile(lambda x, y, particles=particles: cross_entropy(particles(x), y))
        ends.append([step(odd, y).loss_after for _ in range(4)])
    assert_close(*ends)


@pytest.mark.parametrize("asks", ["the caller", "the loss"])
def test_a_loss_may_use_the_gradient_by_its_inputs(asks: str) -> None:
    ends = []
    for compiled in (True, False):
        particles = ol.Ensemble(
            lambda: nn.Sequential(nn.Linear(20, 3), nn.Tanh()), 3, device="cuda"
        )
        pf = ol.WeightedParticleFilter(particles, SGD(particles.parameters(), 0.1))

        def loss(x: Tensor, y: Tensor, particles: ol.Ensemble = particles) -> Tensor:
            with torch.enable_grad():
                outputs = particles(x if x.requires_grad else x.requires_grad_())
                losses = cross_entropy(outputs, y)
                (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
            return losses + slope.square().sum()

        step = pf.compile(loss) if compiled else lambda x, y: pf.step(lambda: loss(x, y))  # noqa: B023
        x, y = (t[:8].cuda() for t in data(20))
        batches = [x.clone().requires_grad_(asks == "the caller") for _ in range(4)]
        ends.append([step(batch, y).loss_after for batch in batches])
    # recorded and eager steps may choose other kernels for the same sums
    assert_close(*ends, rtol=1e-5, atol=1e-6)


def test_a_task_that_ends_after_recording_is_heeded() -> None:
    """Four steps, the end of a task, four more with its penalty: as if all had been eager."""
    x, y = (tensor.cuda() for tensor in data(20))
    ends = []
    for compiled in (False, True):
        particles = ol.Ensemble(mlp, 6, seed=1, device="cuda")
        pf = ol.WeightedParticleFilter(particles, SGD(particles.parameters(), 0.1))
        ewc = ol.EWC(particles, 100.0)
        pf.register(ewc)
        loss = lambda x, y, particles=particles: cross_entropy(particles(x), y)  # noqa: E731
        fast = pf.compile(loss)
        for number, batch in enumerate(zip(x.split(8), y.split(8), strict=True)):
            if number == 4:
                ewc.end_task((x, y))
            _ = fast(*batch) if compiled else pf.step(lambda batch=batch, loss=loss: loss(*batch))
        assert bool((ewc.penalty() > 0).all())
        flat = torch.cat([p.detach().flatten() for p in particles.parameters()])
        ends.append({"positions": flat, "weights": pf.log_weights})
    assert_same(*ends, 1e-5)
