"""What the product refuses, in one sentence, with everything as it was before."""

import copy
import operator

import pytest
import torch
from tests.common import OPTIMIZERS, assert_identical, take_step
from tests.product.tasks import (
    convolutional,
    five_tasks,
    learned,
    mlp,
    product,
)
from torch import Tensor, nn

import orderless as ol

X, Y = five_tasks()[0]


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.into(x))


class Shifted(nn.Module):
    """A parameter of its own."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.linear, self.shift = nn.Linear(6, 3), nn.Parameter(torch.zeros(3), trained)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.shift


class Squashed(nn.Linear):
    """Its weight sees other inputs than it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.tanh())


UNKNOWN = {
    "a subclass that computes otherwise": (lambda: Squashed(6, 3), "'bias' of a Squashed"),
    "complex numbers": (lambda: nn.Linear(6, 3, dtype=torch.complex64), "'bias' of a Linear"),
    "a parameter": (Shifted, "'shift' of a Shifted"),
    "attention": (lambda: nn.MultiheadAttention(4, 2), "'in_proj_bias' of a MultiheadAttention"),
    "recurrent": (lambda: nn.GRU(3, 2), "'bias_hh_l0' of a GRU"),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 3, 2), "of a ConvTranspose2d"),
    "a transposed tie": (Transposed, "'into.weight': it is tied"),
    "all frozen": (lambda: nn.Linear(2, 2).requires_grad_(False), "nothing is learned"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_layers_nobody_knows_are_refused_by_name(name: str) -> None:
    make_model, words = UNKNOWN[name]
    with pytest.raises(ValueError, match=words):
        product(make_model)


def test_what_is_frozen_is_not_asked_about():
    pf = product(lambda: Shifted(trained=False))
    take_step(pf, X, Y)
    pf.end_task((X, Y))
    assert not pf.networks[0].shift.any()


def begun() -> ol.PosteriorProduct:
    """One finished task, and one step of the next."""
    pf = learned([1], make_model=convolutional)
    take_step(pf, X, Y)
    return pf


REAL = Y.float()
BAD_DATA = {
    "another shape": ((X[:, :4], Y), RuntimeError, "multiply up to the size of dim 1"),
    "no pair": (X, TypeError, "two tensors"),
    "a number": (3, TypeError, "got int"),
    "other lengths": ((X, Y[:3]), ValueError, "as many labels"),
    "no samples": ([], ValueError, "no samples"),
    "not finite": ((X * torch.nan, Y), ValueError, "must be finite"),
    "values": ((X, REAL), ValueError, "float32.*link='identity'"),
    "batches of values": ([(X, REAL)], ValueError, "float32.*link='identity'"),
}


@pytest.mark.parametrize("bad", BAD_DATA)
def test_bad_data_changes_nothing(bad):
    data, error, words = BAD_DATA[bad]
    pf = begun()
    before, modes = copy.deepcopy(pf.state_dict()), [m.training for m in pf.particles.modules()]
    with pytest.raises(error, match=words):
        pf.end_task(data)
    assert_identical(pf.state_dict(), before)
    assert [m.training for m in pf.particles.modules()] == modes


@pytest.mark.parametrize("wrong", [lambda parameters: 1 / 0, lambda parameters: None])
def test_an_optimizer_that_cannot_be_made_changes_nothing(wrong, monkeypatch):
    """The task is not counted, and can be ended later."""
    pf = begun()
    before = copy.deepcopy(pf.state_dict())
    with monkeypatch.context() as patch, pytest.raises((ZeroDivisionError, TypeError)):
        patch.setattr(pf, "make_optimizer", wrong)
        pf.end_task((X, Y))
    assert_identical(pf.state_dict(), before)
    pf.end_task((X, Y))
    assert pf.tasks == 2


def test_a_task_without_a_step_is_refused():
    pf = learned([1])
    before = copy.deepcopy(pf.state_dict())
    with pytest.raises(ValueError, match="has not taken a step"):
        pf.end_task((X, Y))
    assert_identical(pf.state_dict(), before)


class Bare(nn.Module):
    """Its weights are used without their module, and a buffer counts calls."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.counts = counts
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.calls = self.calls + 1
            return self.linear(x)
        return x @ self.linear.weight.T + self.linear.bias


@pytest.mark.parametrize(
    ("counts", "words"),
    [(False, "'linear.weight' was trained, but no call"), (True, "buffer 'calls'")],
)
def test_what_cannot_be_merged_after_training_is_refused(counts: bool, words: str) -> None:
    pf = product(lambda: Bare(counts))
    take_step(pf, X, Y)
    with pytest.raises(ValueError, match=words):
        pf.end_task((X, Y))
    assert pf.tasks == 0


def other_seed() -> ol.PosteriorProduct:
    return ol.PosteriorProduct(ol.Ensemble(mlp, 2, seed=7), OPTIMIZERS["sgd"])


MISMATCHED = {
    "more particles": (lambda: product(n=3), "different networks: '0.weight'"),
    "another seed": (other_seed, "different starts: '0.weight'"),
    "another network": (lambda: product(convolutional), "different networks"),
}


@pytest.mark.parametrize("join", [operator.add, operator.sub])
@pytest.mark.parametrize("name", MISMATCHED)
def test_only_products_with_one_start_can_be_added(name, join):
    make, words = MISMATCHED[name]
    ours = learned([0])
    with pytest.raises(ValueError, match=words):
        join(ours, make())
    assert ours.tasks == 1


@pytest.mark.parametrize("tasks", [[0, 1], []])
def test_a_task_that_was_never_added_cannot_be_taken_away(tasks):
    with pytest.raises(ValueError, match="a task that the first has not"):
        learned(tasks) - learned([2])


def test_moments_that_do_not_fit_are_refused_with_their_size() -> None:
    wide = ol.Ensemble(lambda: nn.Linear(20_000_000, 1, bias=False, device="meta"), 1)
    with pytest.raises(MemoryError, match=r"need [\d.]+ GiB but [\d.]+ GiB are free"):
        ol.PosteriorProduct(wide, OPTIMIZERS["sgd"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prior_precision": 0.0}, "positive, got 0.0"),
        ({"anchor": "mean"}, "anchor must be 'start' or 'sum', got 'mean'"),
        ({"link": "probit"}, "link must be"),
    ],
)
def test_settings_are_checked(options, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        product(**options)


def test_a_prior_that_is_lost_in_rounding_is_named():
    """Two equal columns: G is singular, and p_0 = 1e-18 is nothing beside it."""
    x, y = torch.randn(20, 1).expand(20, 2).double(), torch.arange(20) % 2
    pf = product(lambda: nn.Linear(2, 2).double(), prior_precision=1e-18)
    take_step(pf, x, y)
    pf.end_task((x, y))
    with pytest.raises(ValueError, match="'weight' cannot be inverted with prior_precision=1e-18"):
        pf.predict(x)


def test_an_optimizer_is_not_a_way_to_make_one():
    particles = ol.Ensemble(mlp, 1)
    with pytest.raises(TypeError, match="make_optimizer must be a function"):
        ol.PosteriorProduct(particles, OPTIMIZERS["sgd"](particles.parameters()))


def frozen_first() -> ol.PosteriorProduct:
    def make() -> nn.Module:
        network = mlp()
        network[0].requires_grad_(False)
        return network

    return learned([0], make_model=make)


STATES = {
    "frozen otherwise": (lambda pf, state: frozen_first().state_dict(), "parameter group"),
    "of its filter": (lambda pf, state: pf.task_filter.state_dict(), "of a AveragingParticles"),
    "of another model": (
        lambda pf, state: learned([0], make_model=convolutional).state_dict(),
        "another model",
    ),
    "no draw": (
        lambda pf, state: {name: part for name, part in state.items() if name != "first_draw"},
        "it has no 'first_draw'",
    ),
    "no start": (lambda pf, state: {**state, "start": {}}, "another model"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_senseless_state_is_refused_before_any_change(name: str) -> None:
    change, words = STATES[name]
    pf = learned([0])
    take_step(pf, X, Y)
    before = copy.deepcopy(pf.state_dict())
    with pytest.raises(ValueError, match=words):
        pf.load_state_dict(change(pf, learned([1, 2]).state_dict()))
    assert_identical(pf.state_dict(), before)


def test_a_state_without_a_survivor_is_refused() -> None:
    pf = learned([0])
    state = copy.deepcopy(pf.state_dict())
    state["sums"]["sums"]["deaths", "", None][0].add_(1)
    with pytest.raises(FloatingPointError, match="lived through every task"):
        pf.load_state_dict(state)
