"""What a filter refuses, in one sentence, with everything as it was before."""

import pytest
import torch
from tests.common import (
    OPTIMIZERS,
    assert_identical,
    batches,
    cross_entropy,
    dropout_mlp,
    gradient_filter,
    mlp,
    train,
    whole_state,
)
from torch import Tensor, nn
from torch.optim import SGD

import orderless as ol


def network() -> nn.Module:
    """Everything that has state: BatchNorm buffers and dropout draws."""
    return nn.Sequential(dropout_mlp(), nn.BatchNorm1d(3))


def trained(optimizer: str = "sgd", steps: int = 2) -> ol.WeightedParticleFilter:
    pf = gradient_filter(network, 4, OPTIMIZERS[optimizer])
    train(pf, batches(steps))
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
    "all NaN": (lambda losses: losses * float("nan"), FloatingPointError, "nothing has changed"),
    "all infinite": (lambda losses: losses + float("inf"), FloatingPointError, "no particle"),
}


@pytest.mark.parametrize("wrong", WRONG_LOSSES)
@pytest.mark.parametrize(
    ("optimizer", "position"), [("sgd", "only"), ("momentum", "second"), ("adam", "only")]
)
def test_wrong_losses_are_named_and_change_nothing(wrong, optimizer, position):
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
    assert pf.step(closure).alive.all()  # and it goes on


@pytest.mark.parametrize(
    ("optimizer", "steps"), [("sgd", 0), ("sgd", 2), ("momentum", 2), ("adam", 0), ("adam", 2)]
)
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_closure_that_fails_before_the_move_leaves_everything_as_before(optimizer, steps, error):
    pf = trained(optimizer, steps)
    before = whole_state(pf)

    def closure() -> Tensor:
        cross_entropy(pf.particles(X), Y)  # draws noise and updates buffers
        raise error("no data")

    with pytest.raises(error):
        pf.step(closure)
    assert_identical(whole_state(pf), before)


LOSSES = torch.ones(4, requires_grad=True)
WRONG_STEPS = {
    "no closure": (lambda pf: pf.step([]), ValueError, "empty list"),
    "losses": (lambda pf: pf.step(LOSSES), TypeError, "step takes functions .* got Tensor"),
    "in a list": (lambda pf: pf.step([LOSSES]), TypeError, "step takes functions .* got Tensor"),
    "nothing": (lambda pf: pf.step(None), TypeError, "step takes functions .* got NoneType"),
    "a penalty's losses": (
        lambda pf: pf.step(lambda: LOSSES, penalty=LOSSES),
        TypeError,
        "step takes functions .* got Tensor",
    ),
    "a penalty in one number": (
        lambda pf: pf.step(lambda: pf.particles(X).mean((1, 2)), penalty=lambda: torch.zeros(())),
        ValueError,
        "the penalty must return one loss per particle",
    ),
    "of something else": (
        lambda pf: pf.step(lambda: LOSSES.square()),
        ValueError,
        "do not depend on any parameter that the optimizer",
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("wrong", WRONG_STEPS)
def test_what_is_no_step_is_refused(wrong, optimizer):
    step, error, message = WRONG_STEPS[wrong]
    pf = trained(optimizer)
    before = whole_state(pf)
    with pytest.raises(error, match=message):
        step(pf)
    assert_identical(whole_state(pf), before)


def of_another(particles: ol.Ensemble) -> ol.WeightedParticleFilter:
    return ol.WeightedParticleFilter(particles, SGD(ol.Ensemble(mlp, 3).parameters(), lr=0.1))


def of_a_parameter_more(particles: ol.Ensemble) -> ol.WeightedParticleFilter:
    more = nn.Parameter(torch.zeros(5))
    return ol.WeightedParticleFilter(particles, SGD([*particles.parameters(), more], lr=0.1))


@pytest.mark.parametrize(("make", "shape"), [(of_another, "3, 8, 6"), (of_a_parameter_more, "5,")])
def test_an_optimizer_of_other_parameters_is_refused(make, shape):
    with pytest.raises(ValueError, match=rf"shape \({shape}\)"):
        make(ol.Ensemble(mlp, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "simpson"}, "'simpson'"),
        ({"loss_scale": 0.0}, "loss_scale must be positive, got 0.0"),
        ({"loss_scale": float("nan")}, "got nan"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be positive, got -1.0"),
        ({"link": "probit"}, "'probit'"),
        ({"min_ess": 4}, "between 1 and n=3, got 4"),
        ({"min_ess": 0}, "between 1 and n=3, got 0"),
        ({"min_ess": 0.5}, "between 1 and n=3, got 0.5"),
        ({"min_ess": float("nan")}, "between 1 and n=3, got nan"),
        ({"kind": ol.GradientDescent}, "an ensemble of 3"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        gradient_filter(**options)


@pytest.mark.parametrize("kind", [ol.WeightedParticleFilter, ol.GradientDescent])
def test_a_plain_module_is_refused(kind):
    module = mlp()
    with pytest.raises(TypeError, match="got Sequential"):
        kind(module, SGD(module.parameters(), lr=0.1))
