"""What a filter refuses, in one sentence, with everything as it was before."""

import pytest
import torch
from tests.filters.oracles import (
    assert_identical,
    batches,
    cross_entropy,
    dropout_mlp,
    mlp,
    whole_state,
)
from torch import Tensor, nn

import orderless as ol


def network() -> nn.Module:
    """Everything that has state: BatchNorm buffers and dropout draws."""
    return nn.Sequential(dropout_mlp(), nn.BatchNorm1d(3))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
}


def trained(optimizer: str = "sgd", steps: int = 2, **options) -> ol.WeightedParticleFilter:
    particles = ol.Ensemble(network, 4)
    optimizer = OPTIMIZERS[optimizer](particles.parameters())
    pf = ol.WeightedParticleFilter(particles, optimizer, **options)
    for x, y in batches(steps):
        pf.step(lambda x=x, y=y: cross_entropy(particles(x), y))
    return pf


X, Y = next(batches(1))
WRONG_LOSSES = {
    "a scalar": (lambda losses: losses.sum(), ValueError, r"shape \(4,\), got a scalar"),
    "too few": (lambda losses: losses[:3], ValueError, r"shape \(4,\), got shape \(3,\)"),
    "a matrix": (lambda losses: losses[:, None], ValueError, r"got shape \(4, 1\)"),
    "bf16": (lambda losses: losses.bfloat16(), TypeError, "got torch.bfloat16"),
    "integers": (lambda losses: losses.long(), TypeError, "got torch.int64"),
    "elsewhere": (lambda losses: losses.to("meta"), ValueError, "on meta, not on cpu"),
    "a list": (lambda losses: losses.tolist(), TypeError, "got list"),
    "nothing": (lambda _: None, TypeError, "got NoneType"),
    "no gradient": (lambda losses: losses.detach(), ValueError, "do not depend"),
    "all NaN": (lambda losses: losses * float("nan"), FloatingPointError, "no particle"),
    "all infinite": (lambda losses: losses + float("inf"), FloatingPointError, "no particle"),
}


@pytest.mark.parametrize("wrong", WRONG_LOSSES)
@pytest.mark.parametrize(
    ("optimizer", "position"), [("sgd", "only"), ("momentum", "second"), ("adam", "only")]
)
def test_wrong_losses_are_named_and_change_nothing(
    wrong: str, optimizer: str, position: str
) -> None:
    pf = trained(optimizer)
    spoil, error, message = WRONG_LOSSES[wrong]
    before = whole_state(pf)

    def closure() -> Tensor:
        return cross_entropy(pf.particles(X), Y)

    closures = [lambda: spoil(closure())]
    with pytest.raises(error, match=message) as caught:
        pf.step(closures if position == "only" else [closure, *closures])
    assert "\n" not in str(caught.value)
    assert_identical(whole_state(pf), before)
    pf.step(closure)  # and it goes on


@pytest.mark.parametrize(
    ("optimizer", "steps"), [("sgd", 0), ("sgd", 2), ("momentum", 2), ("adam", 0), ("adam", 2)]
)
@pytest.mark.parametrize("how", ["raises", "interrupted"])
def test_a_closure_that_fails_before_the_move_leaves_everything_as_before(
    optimizer: str, steps: int, how: str
) -> None:
    pf = trained(optimizer, steps)
    error = {"raises": KeyError, "interrupted": KeyboardInterrupt}[how]

    def closure() -> Tensor:
        cross_entropy(pf.particles(X), Y)  # draws noise and updates buffers
        raise error("no data")

    before = whole_state(pf)
    with pytest.raises(error):
        pf.step(closure)
    assert_identical(whole_state(pf), before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loss_of_something_else_is_refused(optimizer: str) -> None:
    pf = trained(optimizer)
    other = torch.ones(4, requires_grad=True)
    before = whole_state(pf)
    with pytest.raises(ValueError, match="do not depend on any parameter that the optimizer"):
        pf.step(lambda: other.square())
    assert_identical(whole_state(pf), before)


def test_no_closure_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="empty list"):
        trained().step([])


def test_losses_instead_of_a_function_are_refused() -> None:
    pf = trained()
    losses = cross_entropy(pf.particles(X), Y)
    before = whole_state(pf)
    for wrong in (losses, [losses], None):
        with pytest.raises(TypeError, match="step takes functions .* got (Tensor|NoneType)"):
            pf.step(wrong)
    with pytest.raises(TypeError, match="step takes functions .* got Tensor"):
        pf.step(lambda: cross_entropy(pf.particles(X), Y), penalty=losses)
    assert_identical(whole_state(pf), before)


def test_a_penalty_of_the_wrong_shape_is_named() -> None:
    pf = trained()
    before = whole_state(pf)
    with pytest.raises(ValueError, match="the penalty must return one loss per particle"):
        pf.step(lambda: cross_entropy(pf.particles(X), Y), penalty=lambda: torch.zeros(()))
    assert_identical(whole_state(pf), before)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    particles, other = ol.Ensemble(mlp, 2), ol.Ensemble(mlp, 3)
    with pytest.raises(ValueError, match=r"shape \(3, 8, 6\)"):
        ol.WeightedParticleFilter(particles, torch.optim.SGD(other.parameters(), lr=0.1))
    both = [*particles.parameters(), nn.Parameter(torch.zeros(5))]
    with pytest.raises(ValueError, match=r"shape \(5,\)"):
        ol.WeightedParticleFilter(particles, torch.optim.SGD(both, lr=0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "simpson"}, "'simpson'"),
        ({"loss_scale": 0.0}, "loss_scale must be positive, got 0.0"),
        ({"loss_scale": float("nan")}, "got nan"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be positive, got -1.0"),
        ({"link": "probit"}, "'probit'"),
        ({"min_ess": 9}, "got 9"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    particles = ol.Ensemble(mlp, 2)
    with pytest.raises(ValueError, match=message):
        ol.WeightedParticleFilter(
            particles, torch.optim.SGD(particles.parameters(), lr=0.1), **options
        )


@pytest.mark.parametrize("kind", [ol.WeightedParticleFilter, ol.GradientDescent])
def test_a_plain_module_is_refused(kind: type) -> None:
    module = mlp()
    with pytest.raises(TypeError, match="got Sequential"):
        kind(module, torch.optim.SGD(module.parameters(), lr=0.1))


def test_gradient_descent_has_one_particle() -> None:
    particles = ol.Ensemble(mlp, 3)
    with pytest.raises(ValueError, match="an ensemble of 3"):
        ol.GradientDescent(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
