"""What filters are tested against: small problems, a Python loop of networks, whole states."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol

cross_entropy = ol.per_particle(F.cross_entropy)
squares = ol.per_particle(F.mse_loss)


class Point(nn.Module):
    """A network that is nothing but a point x in d dimensions; given g it returns <g, x>."""

    def __init__(self, dimensions: int = 3) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(dimensions))

    def forward(self, g: Tensor) -> Tensor:
        return g @ self.x


def points(n: int = 5, dimensions: int = 3, seed: int = 0) -> ol.Ensemble:
    return ol.Ensemble(lambda: Point(dimensions), n, seed=seed).double()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    """For images `[B, 2, 8, 8]`."""
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 3)),
    )


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3))


def batches(count: int, shape: tuple[int, ...] = (4, 6), dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        x = torch.randn(shape, generator=generator, dtype=dtype)
        yield x, torch.randint(0, 3, shape[:1], generator=generator)


def loop(
    particles: ol.Ensemble,
    make_optimizer: Callable[..., torch.optim.Optimizer],
    data: list[tuple[Tensor, Tensor]],
    max_grad_norm: float | None = None,
    make_scheduler: Callable | None = None,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
) -> tuple[list[nn.Module], Tensor]:
    """N modules, N optimizers, one after another: (the modules, their trapezoid log-weights)."""
    loss = loss or (lambda module, x, y: F.cross_entropy(module(x), y))
    modules, log_weights = [particles[i] for i in range(particles.n)], []
    for module in modules:
        optimizer = make_optimizer(module.parameters())
        scheduler = make_scheduler(optimizer) if make_scheduler else None
        log_weight = 0.0
        for x, y in data:
            optimizer.zero_grad()
            before = loss(module, x, y)
            before.backward()
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)
            optimizer.step()
            with torch.no_grad():
                after = loss(copy.deepcopy(module), x, y)
            log_weight -= (before.item() + after.item()) / 2
            if scheduler is not None:
                scheduler.step()
        log_weights.append(log_weight)
    return modules, torch.tensor(log_weights, dtype=torch.float64).log_softmax(0)


def assert_same_networks(
    particles: ol.Ensemble, modules: list[nn.Module], tolerance: float
) -> None:
    for i, module in enumerate(modules):
        ours = particles[i].state_dict()
        for name, theirs in module.state_dict().items():
            torch.testing.assert_close(ours[name], theirs, rtol=0, atol=tolerance, msg=name)


def whole_state(pf: ol.filters.ParticleFilter) -> dict:
    """A copy of everything that a failed step must leave alone."""
    state = copy.deepcopy(pf.state_dict())
    # buffers that are not saved count too
    state["buffers"] = {n: b.clone() for n, b in pf.particles.named_buffers()}
    return state


def assert_identical(left: object, right: object, where: str = "state") -> None:
    """Bit for bit, NaN equal to NaN, in nested dicts and lists."""
    assert type(left) is type(right), where
    if isinstance(left, Tensor):
        assert left.dtype == right.dtype, where
        assert torch.equal(left.nan_to_num(nan=12345.0), right.nan_to_num(nan=12345.0)), where
        assert torch.equal(left.isnan(), right.isnan()), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_identical(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), where
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_identical(a, b, f"{where}/{i}")
    else:
        assert left == right, where
