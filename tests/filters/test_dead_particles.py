"""A particle without a finite loss or gradient: weight 0 for ever, and no harm to the others."""

import functools

import pytest
import torch
from tests.filters.oracles import assert_identical, batches, cross_entropy, mlp
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
    """Train; before step `spoil_at` something goes wrong with one particle. (pf, infos)"""
    particles = ol.Ensemble(Fragile, n)
    optimizer = OPTIMIZERS[optimizer](particles.parameters())
    pf = ol.WeightedParticleFilter(particles, optimizer, **options)
    infos = []
    for number, (x, y) in enumerate(batches(steps)):
        if number == spoil_at:
            with torch.no_grad():
                spoil(particles)
        infos.append(pf.step(lambda x=x, y=y: cross_entropy(particles(x), y)))
    return pf, infos


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
def test_the_others_go_on_as_without_it(
    optimizer: str, spoil, weighting: str, max_grad_norm: float | None
) -> None:
    options = {"weighting": weighting, "max_grad_norm": max_grad_norm}
    pf, infos = run(spoil, optimizer, **options)
    undisturbed = healthy(optimizer, **options)
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
def test_it_may_die_where_it_arrives(optimizer: str) -> None:
    """The first evaluation is fine, the second overflows."""
    particles = ol.Ensemble(Fragile, 5)
    pf = ol.WeightedParticleFilter(particles, OPTIMIZERS[optimizer](particles.parameters()))
    (x, y), *_ = batches(1)
    with torch.no_grad():
        particles.fuse[DEAD] = 1e-3
    info = pf.step(lambda: cross_entropy(particles(x), y) + fuses(particles))
    assert info.loss_before.isfinite().all()
    assert info.loss_after.isnan().tolist() == [False, False, True, False, False]
    assert pf.weights[DEAD] == 0
    assert not info.alive[DEAD]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_when_the_last_one_dies_an_error_says_so_and_weights_stay(optimizer: str) -> None:
    particles = ol.Ensemble(Fragile, 3)
    pf = ol.WeightedParticleFilter(particles, OPTIMIZERS[optimizer](particles.parameters()))
    (x, y), *_ = batches(1)
    with torch.no_grad():
        particles.fuse.fill_(1e-3)
    with pytest.raises(FloatingPointError, match="no particle is left"):
        pf.step(lambda: cross_entropy(particles(x), y) + fuses(particles))
    assert pf.steps.item() == 0
    torch.testing.assert_close(pf.weights, torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_averaging_filter_averages_the_living(optimizer: str) -> None:
    """Also where the loss is finite and only the gradient is not."""
    for spoil in (nan_loss, infinite_gradient):
        particles = ol.Ensemble(Fragile, 5)
        pf = ol.AveragingParticles(particles, OPTIMIZERS[optimizer](particles.parameters()))
        with torch.no_grad():
            spoil(particles)
        (x, y), *_ = batches(1)
        pf.step(lambda p=particles, x=x, y=y: cross_entropy(p(x), y))
        assert pf.weights.tolist() == pytest.approx([0.25, 0.25, 0.0, 0.25, 0.25])
        assert abs(pf.log_evidence.item()) < 1e-12
        assert pf.predict(x).isfinite().all()


def test_a_linear_layers_gradient_may_overflow_under_the_averaging_filter() -> None:
    """The step is taken inside the backward pass, where no gradient is written."""
    particles = ol.Ensemble(lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), 3)
    pf = ol.AveragingParticles(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    (x, y), *_ = batches(1)

    mask = torch.tensor([False, True, False]).view(3, 1, 1)

    def closure() -> Tensor:
        outputs = particles(x)
        at_zero = torch.where(mask, outputs - outputs.detach(), 1.0)
        return cross_entropy(outputs, y) + at_zero.sqrt().mean((1, 2))  # an infinite slope at 0

    info = pf.step(closure)
    assert info.loss_before.isfinite().all()
    assert info.alive.tolist() == [True, False, True]


BAD = {"nan": float("nan"), "infinite": float("inf")}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("dead", [[DEAD], [0, 1, 3, 4]], ids=["one dead", "all but one dead"])
@pytest.mark.parametrize("combine", ["probs", "logits"])
@pytest.mark.parametrize("link", ["softmax", "sigmoid", "identity", torch.exp])
@pytest.mark.parametrize("min_ess", [None, 3])
def test_predictions_do_without_the_dead(value: float, dead, combine, link, min_ess) -> None:
    """0 times NaN never reaches a result."""
    particles = ol.Ensemble(mlp, 5)
    adam = torch.optim.Adam(particles.parameters())
    pf = ol.WeightedParticleFilter(particles, adam, link=link, min_ess=min_ess)
    spoil = torch.zeros(5)
    spoil[dead] = value
    (x, y), *_ = batches(1)
    pf.step(lambda: cross_entropy(particles(x), y) + spoil)
    for i in dead:
        particles.get_parameter("2.bias").data[i] = value
    living = [i for i in range(5) if i not in dead]
    outputs = torch.stack([particles[i](x) for i in living]).detach().double()
    weights = pf.weights[living].view(-1, 1, 1)
    function = link if callable(link) else ol.filters.base.LINKS[link]
    expected = (
        (weights * function(outputs)).sum(0)
        if combine == "probs"
        else function((weights * outputs).sum(0))
    )
    torch.testing.assert_close(pf.predict(x, combine=combine).double(), expected)
    assert pf.weights.sum().item() == pytest.approx(1.0)
    assert 1 <= pf.ess <= len(living)


def test_data_that_is_not_finite_changes_nothing() -> None:
    """All losses NaN: an error before anything moves, and training goes on after it."""
    pf, _ = run(nothing, "sgd")
    particles = pf.particles
    before = [of_particle(pf, i) for i in range(5)]
    x = torch.full((4, 6), float("inf"))
    with pytest.raises(FloatingPointError, match="nothing has changed"):
        pf.step(lambda: cross_entropy(particles(x), torch.zeros(4, dtype=torch.long)))
    assert_identical([of_particle(pf, i) for i in range(5)], before)
    x, y = next(batches(1))
    assert pf.step(lambda: cross_entropy(particles(x), y)).alive.all()


def test_a_penalty_that_is_not_finite_kills_too() -> None:
    particles = ol.Ensemble(Fragile, 3)
    pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    (x, y), *_ = batches(1)
    penalty = torch.tensor([0.0, float("inf"), 0.0])
    info = pf.step(lambda: cross_entropy(particles(x), y), penalty=lambda: penalty)
    assert info.alive.tolist() == [True, False, True]
    assert torch.equal(info.penalty, penalty)
