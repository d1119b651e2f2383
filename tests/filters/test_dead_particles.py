"""One particle without a finite loss or gradient: frozen, weightless, and no harm to the others."""

import functools

import pytest
import torch
import torch.nn.functional as F
from tests.filters.oracles import assert_identical, batches, cross_entropy
from torch import Tensor, nn

import orderless as ol

DEAD = 2
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
}


class Fragile(nn.Module):
    """An MLP with BatchNorm and a parameter whose value decides what goes wrong, if anything."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.fuse = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.fuse.sqrt()  # sqrt: at 0 finite, with an infinite slope


def nan_loss(particles: ol.Ensemble) -> None:
    particles.fuse[DEAD] = -1.0


def nan_weights(particles: ol.Ensemble) -> None:
    particles.get_parameter("body.0.weight")[DEAD] = float("nan")


def infinite_gradient(particles: ol.Ensemble) -> None:
    particles.fuse[DEAD] = 0.0


def nothing(particles: ol.Ensemble) -> None:
    pass


def fuses(particles: ol.Ensemble) -> Tensor:
    """A slope on the fuse: 1e-3 goes negative in one step, then its root is NaN."""
    return 3 * particles.fuse.sum(1)


def run(spoil, optimizer: str, steps: int = 4, spoil_at: int = 2, n: int = 5, **options):
    """Train; before step `spoil_at` something goes wrong with one particle. (pf, states, infos)"""
    particles = ol.Ensemble(Fragile, n)
    optimizer = OPTIMIZERS[optimizer](particles.parameters())
    pf = ol.WeightedParticleFilter(particles, optimizer, **options)
    histories, infos = [], []
    for number, (x, y) in enumerate(batches(steps)):
        if number == spoil_at:
            with torch.no_grad():
                spoil(particles)
        histories.append(of_particle(pf, DEAD))
        infos.append(pf.step(lambda x=x, y=y: cross_entropy(particles(x), y)))
    return pf, histories, infos


@functools.cache
def healthy(optimizer: str, **options) -> ol.WeightedParticleFilter:
    """The same training where nothing goes wrong; it is only looked at."""
    return run(nothing, optimizer, **options)[0]


def of_particle(pf, i: int) -> dict:
    """One particle's parameters, buffers and optimizer state."""
    tensors = {**pf.particles.state_dict()}
    for number, state in pf.optimizer.state_dict()["state"].items():
        own = {k: v for k, v in state.items() if isinstance(v, Tensor) and v.dim() > 0}
        tensors |= {f"{number}.{k}": v for k, v in own.items()}
    return {name: tensor[i].clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("spoil", [nan_loss, nan_weights, infinite_gradient])
@pytest.mark.parametrize(
    ("weighting", "max_grad_norm"), [("trapezoid", None), ("linearized", None), ("trapezoid", 0.5)]
)
def test_it_is_frozen_and_the_others_go_on_as_without_it(
    optimizer: str, spoil, weighting: str, max_grad_norm: float | None
) -> None:
    options = {"weighting": weighting, "max_grad_norm": max_grad_norm}
    pf, histories, infos = run(spoil, optimizer, **options)
    undisturbed = healthy(optimizer, **options)
    assert_identical(of_particle(pf, DEAD), histories[2])  # as when it was spoilt
    assert pf.weights[DEAD] == 0
    assert [info.alive[DEAD].item() for info in infos] == [True, True, False, False]
    assert pf.alive.tolist() == [True, True, False, True, True]
    for i in (0, 1, 3, 4):
        assert_identical(of_particle(pf, i), of_particle(undisturbed, i))
    others = torch.tensor([0, 1, 3, 4])
    expected = undisturbed.raw_log_weights[others].log_softmax(0)
    torch.testing.assert_close(pf.log_weights[others], expected, rtol=0, atol=1e-12)
    assert pf.log_evidence.isfinite()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_may_die_at_the_first_step(optimizer: str) -> None:
    pf, histories, _ = run(infinite_gradient, optimizer, spoil_at=0)
    now = of_particle(pf, DEAD)
    assert_identical({name: now[name] for name in histories[0]}, histories[0])
    state = {name: tensor for name, tensor in now.items() if name not in histories[0]}
    assert all((tensor == 0).all() for tensor in state.values())  # optimizer state: none yet
    assert pf.alive.sum() == 4


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_may_die_where_it_arrives(optimizer: str) -> None:
    """The first evaluation is fine, the second overflows: it has not moved."""
    particles = ol.Ensemble(Fragile, 5)
    pf = ol.WeightedParticleFilter(particles, OPTIMIZERS[optimizer](particles.parameters()))
    data = list(batches(3))
    for x, y in data[:2]:
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
    with torch.no_grad():
        particles.fuse[DEAD] = 1e-3
    before = of_particle(pf, DEAD)
    x, y = data[2]
    info = pf.step(lambda: cross_entropy(particles(x), y) + fuses(particles))
    assert info.loss_before.isfinite().all()
    assert info.loss_after.isnan().tolist() == [False, False, True, False, False]
    assert_identical(of_particle(pf, DEAD), before)
    assert pf.weights[DEAD] == 0
    assert not info.alive[DEAD]
    moved = of_particle(pf, 0)["body.0.weight"]
    assert not torch.equal(moved, ol.Ensemble(Fragile, 5)[0].body[0].weight)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_last_one_to_die_leaves_everything_as_before(optimizer: str) -> None:
    particles = ol.Ensemble(Fragile, 3)
    pf = ol.WeightedParticleFilter(particles, OPTIMIZERS[optimizer](particles.parameters()))
    (x, y), *_ = batches(1)
    with torch.no_grad():
        particles.fuse.fill_(1e-3)
    before = of_particle(pf, 0)
    with pytest.raises(FloatingPointError, match="no particle is left"):
        pf.step(lambda: cross_entropy(particles(x), y) + fuses(particles))
    assert_identical(of_particle(pf, 0), before)
    assert pf.alive.all()
    assert pf.steps.item() == 0
    torch.testing.assert_close(pf.weights, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_the_averaging_filter_averages_the_living() -> None:
    particles = ol.Ensemble(Fragile, 5)
    pf = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    with torch.no_grad():
        nan_loss(particles)
    for x, y in batches(2):
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
    torch.testing.assert_close(pf.weights, torch.tensor([0.25, 0.25, 0.0, 0.25, 0.25]).double())
    assert abs(pf.log_evidence.item()) < 1e-12


@pytest.mark.parametrize("combine", ["probs", "logits"])
@pytest.mark.parametrize("min_ess", [None, 3, 5])
def test_predictions_do_without_it(combine: str, min_ess: float | None) -> None:
    pf, _, _ = run(nan_loss, "sgd", min_ess=min_ess)
    x = torch.randn(3, 6)
    assert pf.outputs(x)[DEAD].isnan().all()
    prediction = pf.predict(x, combine=combine)
    assert prediction.isfinite().all()
    torch.testing.assert_close(prediction.sum(-1), torch.ones(3))


def test_infinite_data_kills_nobody_for_good() -> None:
    """All losses NaN: an error, and after it everything is as before and goes on."""
    pf, _, _ = run(nothing, "sgd")
    particles = pf.particles
    before = [of_particle(pf, i) for i in range(5)]
    x = torch.full((4, 6), float("inf"))
    with pytest.raises(FloatingPointError):
        pf.step(lambda: cross_entropy(particles(x), torch.zeros(4, dtype=torch.long)))
    assert_identical([of_particle(pf, i) for i in range(5)], before)
    x, y = next(batches(1))
    assert pf.step(lambda: cross_entropy(particles(x), y)).alive.all()


def test_a_penalty_that_is_not_finite_kills_too() -> None:
    particles = ol.Ensemble(Fragile, 3)
    pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    (x, y), *_ = batches(1)
    before = of_particle(pf, 1)
    penalty = torch.tensor([0.0, float("inf"), 0.0])
    info = pf.step(lambda: cross_entropy(particles(x), y), penalty=lambda: penalty)
    assert info.alive.tolist() == [True, False, True]
    assert_identical(of_particle(pf, 1), before)
    assert torch.equal(info.penalty, penalty)


def test_a_linear_layers_input_may_overflow() -> None:
    """Inside a network an activation is infinite while the loss is finite: 0 * inf is not 0."""

    class Overflow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x)).exp()).clamp(-5, 5)

    particles = ol.Ensemble(Overflow, 3)
    with torch.no_grad():
        particles.get_parameter("a.weight")[1] *= 1e4
    before = particles[1].state_dict()
    pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    (x, y), *_ = batches(1)
    info = pf.step(lambda: cross_entropy(particles(x), y).nan_to_num(1.0))
    assert info.alive.tolist() == [True, False, True]
    assert_identical(dict(particles[1].state_dict()), dict(before))
    assert all(p.isfinite().all() for p in particles.parameters())
