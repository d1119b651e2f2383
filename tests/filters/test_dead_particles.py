"""A particle without a finite loss or gradient: weight 0 for ever, and no harm to the others."""

import functools

import pytest
import torch
from tests.common import (
    OPTIMIZERS,
    assert_identical,
    batches,
    cross_entropy,
    gradient_filter,
    mlp,
    take_step,
)
from torch import Tensor, nn
from torch.testing import assert_close

import orderless as ol

DEAD = 2
OTHERS = [0, 1, 3, 4]
X, Y = next(batches(1))


class Fragile(nn.Module):
    """An MLP with BatchNorm and a parameter whose value decides what goes wrong, if anything."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.fuse = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.fuse.sqrt()  # sqrt: at 0 finite, with an infinite slope


def fragile(optimizer: str = "sgd", n: int = 5, **options) -> ol.GradientFilter:
    return gradient_filter(Fragile, n, OPTIMIZERS[optimizer], **options)


FAULTS = {  # (a parameter of the dead one, what it becomes)
    "NaN loss": ("fuse", -1.0),
    "NaN weights": ("body.0.weight", float("nan")),
    "infinite gradient": ("fuse", 0.0),
}


@torch.no_grad()
def spoil(pf: ol.GradientFilter, fault: str) -> None:
    name, value = FAULTS[fault]
    pf.particles.get_parameter(name)[DEAD] = value


def run(fault: str | None, optimizer: str, **options) -> tuple[ol.GradientFilter, list]:
    """Four steps; before the third something goes wrong with one particle. (filter, infos)"""
    pf = fragile(optimizer, **options)
    infos = []
    for number, (x, y) in enumerate(batches(4)):
        if number == 2 and fault is not None:
            spoil(pf, fault)
        infos.append(take_step(pf, x, y))
    return pf, infos


@functools.cache
def healthy(optimizer: str, **options) -> ol.GradientFilter:
    """The same training where nothing goes wrong; it is only looked at."""
    return run(None, optimizer, **options)[0]


def of_the_others(pf: ol.GradientFilter) -> list[Tensor]:
    """Parameters, buffers and optimizer state of the other particles."""
    states = pf.optimizer.state.values()
    tensors = [*pf.particles.state_dict().values(), *(t for s in states for t in s.values())]
    return [t[OTHERS] for t in tensors if isinstance(t, Tensor) and t.dim() > 0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("weighting", "max_grad_norm"), [("trapezoid", None), ("linearized", None), ("trapezoid", 0.5)]
)
def test_the_others_go_on_as_without_it(optimizer, fault, weighting, max_grad_norm):
    options = {"weighting": weighting, "max_grad_norm": max_grad_norm}
    pf, infos = run(fault, optimizer, **options)
    undisturbed = healthy(optimizer, **options)
    assert pf.weights[DEAD] == 0
    assert [info.alive[DEAD].item() for info in infos] == [True, True, False, False]
    assert pf.alive.tolist() == [True, True, False, True, True]
    assert_identical(of_the_others(pf), of_the_others(undisturbed))
    expected = undisturbed.raw_log_weights[OTHERS].log_softmax(0)
    assert_close(pf.log_weights[OTHERS], expected, rtol=0, atol=1e-12)
    assert pf.log_evidence.isfinite()


def fall(pf: ol.GradientFilter) -> ol.filters.StepInfo:
    """A step with a slope on the fuse: 1e-3 goes negative, then its root is NaN."""
    return pf.step(lambda: cross_entropy(pf.particles(X), Y) + 3 * pf.particles.fuse.sum(1))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_may_die_where_it_arrives(optimizer):
    """The first evaluation is fine, the second overflows."""
    pf = fragile(optimizer)
    with torch.no_grad():
        pf.particles.fuse[DEAD] = 1e-3
    info = fall(pf)
    assert info.loss_before.isfinite().all()
    assert info.loss_after.isnan().tolist() == [False, False, True, False, False]
    assert pf.weights[DEAD] == 0
    assert not info.alive[DEAD]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_when_the_last_one_dies_an_error_says_so_and_weights_stay(optimizer):
    pf = fragile(optimizer, 3)
    with torch.no_grad():
        pf.particles.fuse.fill_(1e-3)
    with pytest.raises(FloatingPointError, match="no particle is left"):
        fall(pf)
    assert pf.steps.item() == 0
    assert_close(pf.weights, torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_averaging_filter_averages_the_living(optimizer, fault):
    """Also where the loss is finite and only the gradient is not."""
    pf = fragile(optimizer, kind=ol.AveragingParticles)
    spoil(pf, fault)
    take_step(pf, X, Y)
    assert pf.weights.tolist() == pytest.approx([0.25, 0.25, 0.0, 0.25, 0.25])
    assert abs(pf.log_evidence.item()) < 1e-12
    assert pf.predict(X).isfinite().all()


def test_a_linear_layers_gradient_may_overflow_under_the_averaging_filter():
    """The step is taken inside the backward pass, where no gradient is written."""
    pf = gradient_filter(kind=ol.AveragingParticles)
    mask = torch.tensor([False, True, False]).view(3, 1, 1)

    def closure() -> Tensor:
        outputs = pf.particles(X)
        at_zero = torch.where(mask, outputs - outputs.detach(), 1.0)
        return cross_entropy(outputs, Y) + at_zero.sqrt().mean((1, 2))  # an infinite slope at 0

    info = pf.step(closure)
    assert info.loss_before.isfinite().all()
    assert info.alive.tolist() == [True, False, True]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("living", [OTHERS, [DEAD]], ids=["one dead", "all but one dead"])
@pytest.mark.parametrize("combine", ["probs", "logits"])
@pytest.mark.parametrize("link", ["softmax", "sigmoid", "identity", torch.exp])
@pytest.mark.parametrize("min_ess", [None, 3])
def test_predictions_are_weighted_mixtures_of_the_living(value, living, combine, link, min_ess):
    """0 times NaN never reaches a result."""
    pf = gradient_filter(mlp, 5, OPTIMIZERS["adam"], link=link, min_ess=min_ess)
    spoilt = torch.full((5,), value)
    spoilt[living] = 0.0
    pf.step(lambda: cross_entropy(pf.particles(X), Y) + spoilt)
    with torch.no_grad():
        pf.particles.get_parameter("2.bias").add_(spoilt[:, None])
    outputs = torch.stack([pf.particles[i](X) for i in living]).detach().double()
    weights = pf.weights[living].view(-1, 1, 1)
    function = link if callable(link) else ol.filters.base.LINKS[link]
    if combine == "probs":
        expected = (weights * function(outputs)).sum(0)
    else:
        expected = function((weights * outputs).sum(0))
    assert_close(pf.predict(X, combine=combine).double(), expected)
    assert_close(pf.outputs(X)[living].double(), outputs)
    assert pf.weights.sum().item() == pytest.approx(1.0)
    assert 1 <= pf.ess <= len(living)


def test_a_penalty_that_is_not_finite_kills_too():
    pf = fragile(n=3)
    penalty = torch.tensor([0.0, float("inf"), 0.0])
    info = pf.step(lambda: cross_entropy(pf.particles(X), Y), penalty=lambda: penalty)
    assert info.alive.tolist() == [True, False, True]
    assert torch.equal(info.penalty, penalty)
