"""The exact head: no order, what it predicts, and errors that change nothing."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_circles, make_moons
from tests.exact.toys import PROBE, Scaled, X, Y, blobs, fed, line, maps, of_tasks, same_bits
from torch import Tensor, nn

import orderless as ol
from orderless.features import Backbone, RandomReLU
from orderless.io import digest

# ---------------------------------------------------------------------- no order


@pytest.mark.parametrize("order", [(4, 3, 2, 1, 0), (2, 0, 4, 1, 3), (1, 4, 0, 3, 2)])
def test_orders_of_the_tasks_give_the_same_bits(order):
    assert same_bits(of_tasks(range(5)), of_tasks(order))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 37), nn.Tanh(), nn.BatchNorm1d(37), nn.Linear(37, 19))


@pytest.mark.parametrize("size", [1, 7, 512])
@pytest.mark.parametrize("features", ["exact", "network", "linear"])
def test_shuffled_samples_in_any_batch_size_give_the_same_bits(features: str, size: int) -> None:
    """An ordinary network's kernels differ by batch size; blocks of one size keep that away."""
    made: Any = {"exact": maps(), "network": network(), "linear": "linear"}[features]
    whole, shuffled = (ol.ExactHead(made, calibration=4, block_size=64) for _ in range(2))
    whole.update(X, Y)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(size))
    for part in order.split(size):
        shuffled.update(X[part], Y[part])
    assert same_bits(whole, shuffled)


@pytest.mark.slow
def test_no_bit_of_an_answer_depends_on_what_else_is_asked() -> None:
    head = ol.ExactHead(maps(width=130))
    head.update(X, Y)
    test = blobs(300, seed=1)[0]
    whole = head.predict(test)
    variance = head.predictive(test).variance
    for size, count in ((1, 40), (7, 300), (299, 300)):
        parts = test[:count].split(size)
        assert torch.equal(torch.cat([head.predict(part) for part in parts]), whole[:count])
        found = torch.cat([head.predictive(part).variance for part in parts])
        assert torch.equal(found, variance[:count])


@pytest.mark.parametrize("features", ["exact", "network"])
@pytest.mark.parametrize(
    "mode",
    [partial(torch.autocast, "cpu", torch.bfloat16), torch.inference_mode, torch.enable_grad],
    ids=["autocast", "inference", "grad"],
)
def test_no_mode_around_a_call_changes_a_bit(mode: Any, features: str) -> None:
    frozen = network()

    def make() -> ol.ExactHead:
        return ol.ExactHead(maps() if features == "exact" else frozen)

    expected = make()
    expected.update(X, Y)
    with mode():
        head = make() + make()
        head.update(X[:200], Y[:200])
        head.update(X[250:], Y[250:])
        head.forget(X[:50], Y[:50])
        head.load_state_dict(head.state_dict())
    for rows in (slice(50), slice(200, 250)):
        head.update(X[rows], Y[rows])
    with mode():
        answers = head.predict(X), head.predictive(X).variance, head.log_evidence
    assert same_bits(head, expected)
    wanted = expected.predict(X), expected.predictive(X).variance, expected.log_evidence
    assert all(map(torch.equal, answers, wanted))


# ---------------------------------------------------------------------- predictions


def uniform(*shape: int) -> Tensor:
    """Between -1 and 1."""
    return 2.0 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 1.0


SQUARE = 2.0 * uniform(2000, 2)
PROBLEMS = {  # (inputs, labels, least accuracy, largest share of a class)
    "moons": (*make_moons(2000, noise=0.1, random_state=0), 0.95, 0.55),
    "circles": (*make_circles(2000, noise=0.1, factor=0.5, random_state=0), 0.95, 0.55),
    "checkerboard": (SQUARE, SQUARE.floor().long().sum(1) % 2, 0.85, 0.55),
    "a disc off the centre": (SQUARE, ((SQUARE - 0.8).square().sum(1) < 0.5).long(), 0.97, 0.91),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_recipe_of_the_readme_beats_the_majority(problem):
    x, y, least, majority = PROBLEMS[problem]
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    head = ol.ExactHead(ol.Ensemble(lambda: RandomReLU(2, 256), n=4, seed=0))
    head.update(x[:1000], y[:1000])
    accuracy = (head.predict(x[1000:]).argmax(1) == y[1000:]).double().mean().item()
    assert y.bincount().max() < majority * 2000 and accuracy > least


def test_the_recipe_of_the_readme_fits_a_sine():
    x = 3.0 * uniform(2000, 1)
    y = torch.sin(2.0 * x[:, 0])
    maps_ = ol.Ensemble(lambda: RandomReLU(1, 256), n=4, seed=0)
    head = ol.ExactHead(maps_, targets="values")
    head.update(x[:1000], y[:1000])
    error = (head.predict(x[1000:])[:, 0] - y[1000:]).square().mean()
    assert 1.0 - error / y[1000:].var() > 0.9


def test_domain_task_and_class_predictions_read_the_same_head() -> None:
    # without samples: with them, each is judged by how it answers
    head = of_tasks(range(5), calibration=0)
    classes = fed(X, Y, calibration=0)
    assert head.columns == [(task, label) for task in range(5) for label in range(2)]
    assert torch.allclose(head.predictive(X).mean, classes.predictive(X).mean, atol=1e-10)
    best = head.heads[1].outputs(head.grid(X)[1].double()).argmax(1)
    assert torch.equal(head.outputs(X)[1].argmax(1), best % 2)
    mine = Y // 2 == 3
    within = head.predict(X[mine], task=3)
    assert within.shape == (60, 2) and torch.allclose(within.sum(1), torch.ones(60).double())
    assert (within.argmax(1) == Y[mine] % 2).float().mean() > 0.9


def test_classes_appear_when_they_appear() -> None:
    head = ol.ExactHead(maps(), classes=12)
    assert torch.allclose(head.predict(X[:4]), torch.full((4, 12), 1 / 12).double())
    head.update(X[Y == 4], Y[Y == 4])
    assert torch.equal(head.predict(X[:4]).argmax(1), torch.full((4,), 4))
    one = fed(X, Y * 0)
    assert (one.predict(X) == 1).all()
    head.update(X[Y == 2], Y[Y == 2])
    assert (head.predict(X)[:, [0, 1, 3, 5, 11]] == 0).all()
    assert head.columns == [(-1, 2), (-1, 4)]


def test_what_is_read_follows_the_options_that_are_set():
    """As a head that was made with them; what was solved before is dropped."""
    head = of_tasks(range(5))
    head.predict(PROBE)
    head.prior_precision, head.noise_variance = 2.0, 0.1
    made = {"prior_precision": 2.0, "noise_variance": 0.1}
    assert torch.equal(head.predict(PROBE), of_tasks(range(5), **made).predict(PROBE))
    head.class_prior = made["class_prior"] = [0.2, 0.8]
    assert torch.equal(head.predict(PROBE), of_tasks(range(5), **made).predict(PROBE))
    head.weighting = "evidence"
    assert torch.equal(head.weights, of_tasks(range(5), weights="evidence", **made).weights)


# ---------------------------------------------------------------------- bad input


class SpoiltAt(nn.Module):
    """Features that are NaN for samples whose first value is above 50."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 50, torch.nan, x)


def test_bad_input_changes_nothing() -> None:
    head = ol.ExactHead(SpoiltAt(), classes=10, block_size=16, calibration=20)
    head.update(X[:100], Y[:100] % 8)
    before = digest(head.state_dict())
    spoilt = X.clone()
    spoilt[290, 0] = 60.0  # in the last block
    bad = [
        (spoilt, Y, {}, "not finite"),
        (torch.full_like(X, torch.inf), Y, {}, "not finite"),
        (X, Y + 1, {}, "between 0 and 9, got 10"),
        (X, Y - 1, {}, "got -1"),
        (X, Y + 2**32, {}, "got 4294967296"),
        (X, Y.float(), {}, "whole numbers"),
        (X, Y[:-1], {}, r"\[300, 12\] and y \[299\]"),
        (X, Y, {"task": 1}, "without a task"),
        (X, Y, {"task": 2**40}, "task must be a whole number"),
        (X, Y, {"sample_weight": "a"}, "invalid data type 'str'"),
        (X.to(torch.complex64), Y, {}, "real numbers"),
        (X.to_sparse(), Y, {}, "densely"),
        (X[:, :5], Y, {}, "12 features and 8 targets, and now have 5"),
        (X.unsqueeze(2), Y, {}, "Flatten"),
        (X.tolist(), Y, {}, "x must be a tensor, got list"),
        (X[:2], ["cat", "dog"], {}, "number labels that are strings"),
    ]
    for inputs, targets, options, message in bad:
        with pytest.raises((ValueError, TypeError), match=message):
            head.update(inputs, targets, **options)
    assert digest(head.state_dict()) == before
    for inputs in (X.numpy(), X.to(torch.complex64)):
        with pytest.raises(TypeError, match="x must (be a tensor|hold real numbers)"):
            head.predict(inputs)


@pytest.mark.parametrize("y", [[17.0], [[]], [1]], ids=["beyond", "no values", "whole"])
def test_values_that_no_sum_can_hold_are_refused(y: list[Any]) -> None:
    head = line()
    with pytest.raises((ValueError, TypeError), match="target_limit|values must be floats"):
        head.update(torch.ones(1, 3), torch.tensor(y))
    assert head.samples == 0


@pytest.mark.parametrize(
    "kind", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64]
)
def test_labels_and_tasks_are_whole_numbers_of_any_kind(kind: torch.dtype) -> None:
    head, other = ol.ExactHead(maps(), ledger=True), ol.ExactHead(maps(), ledger=True)
    head.update(X[50:], Y[50:], task=1)
    other.update(X, Y.to(kind), task=np.int64(1))
    other.forget(X[:50], Y[:50].to(kind), task=torch.tensor(1))
    assert same_bits(head, other)


def test_labels_that_seem_to_be_ids_are_told() -> None:
    x = torch.randn(2, 12)
    ids = torch.tensor([0, 10**6])
    with pytest.warns(UserWarning, match="a label is 1000000, but there are 2 different ones"):
        ol.ExactHead(maps()).update(x, ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ol.ExactHead(maps(), classes=10**6 + 1).update(x, ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "tempered"}, "weights must be one of uniform, evidence"),
        ({"prior_precision": 1.0}, "both"),
        ({"prior_precision": -1.0, "noise_variance": 1.0}, "positive, got -1.0"),
        ({"feature_limit": 4.0000001}, "power of two"),  # in float32 it is one
        ({"feature_limit": "16"}, "power of two .* got '16'"),
        ({"targets": "values", "target_limit": 3.0}, "power of two"),
        ({"bits": 30}, "between 1 and 16"),
        ({"bits": 16.5}, "bits must be a whole number .* got 16.5"),
        ({"block_size": 2.5}, "block_size .* got 2.5"),
        ({"calibration": 2.5}, "calibration .* got 2.5"),
        ({"calibration": None}, "calibration .* got None"),
        ({"classes": 0}, "classes .* got 0"),
        ({"classes": 2**33}, "classes .* got 8589934592"),
        ({"class_prior": 3}, "class_prior .* got 3"),
        ({"class_prior": "flat"}, "class_prior .* got 'flat'"),
        ({"class_prior": {"cat": 0.5}}, "class_prior .* got"),
        ({"class_prior": [1.0, float("inf")]}, "a positive share per label"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ol.ExactHead(maps(), **options)


def test_maps_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ValueError, match="precision='float32'"):
        ol.ExactHead(ol.Ensemble(lambda: RandomReLU(12, 4), 2, precision="bf16"))
    with pytest.raises(TypeError, match="'linear', got 'relu'"):
        ol.ExactHead("relu")
    backbone = nn.Sequential(nn.Linear(12, 4), nn.ReLU())
    head = ol.ExactHead(Backbone(backbone, inputs=X))
    with pytest.raises(ValueError, match=r"pixels as x.float\(\) / 255"):
        head.update(X.byte(), Y)
    with pytest.raises(ValueError, match=r"x.float\(\)"):
        head.update(X.double(), Y)
    with pytest.raises(ValueError, match=r"a single sample is x\[None\]"):
        head.update(X[:, :1], Y)


def test_maps_that_may_differ_in_bits_do_not_merge() -> None:
    body = nn.Linear(12, 5)
    with pytest.raises(ValueError, match="blocks of 1' here .* blocks of 16' there|blocks of 16"):
        ol.ExactHead(body, block_size=1) + ol.ExactHead(body, block_size=16)
    map_ = RandomReLU(12, 5)
    ol.ExactHead(map_, block_size=1) + ol.ExactHead(map_, block_size=16)  # exact: no matter

    class Elsewhere(RandomReLU):
        def fingerprint(self, device: torch.device) -> str:
            return f"computed on {self.machine}"

    here = Elsewhere(12, 5)
    there = Elsewhere(12, 5)
    there.load_state_dict(here.state_dict())
    here.machine, there.machine = "a", "b"
    with pytest.raises(ValueError, match="computed on a' here and .*computed on b' there"):
        ol.ExactHead(here) + ol.ExactHead(there)


def test_a_head_leaves_the_mode_of_every_layer_as_it_was() -> None:
    ensemble = ol.Ensemble(lambda: nn.Sequential(nn.Linear(12, 8), nn.Dropout()), 2)
    ensemble.train()
    ensemble.template[1].eval()
    ol.ExactHead(ensemble).update(X[:20], Y[:20])
    assert [layer.training for layer in ensemble.template] == [True, False]


# ---------------------------------------------------------------------- warnings


def test_inputs_that_the_maps_would_clip_are_told() -> None:
    narrow, wide = RandomReLU(3, 4), RandomReLU(3, 4, input_limit=64.0)
    x = torch.tensor([[0.0, 1.0, 200.0]])
    for module in (narrow, wide):
        with pytest.warns(UserWarning, match="33% of the inputs lie beyond"):
            ol.ExactHead(module, classes=2).update(x, torch.tensor([0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ol.ExactHead(wide, feature_limit=1024.0).update(x / 4, torch.tensor([0]))
        ol.ExactHead(nn.Linear(3, 4)).update(x / 100, torch.tensor([0]))


@pytest.mark.parametrize("factor", [1e-6, 1e-4, 1e6])
def test_features_that_do_not_suit_the_grid_are_told_once_with_a_limit_that_does(
    factor: float,
) -> None:
    head = ol.ExactHead(Scaled(factor))
    with pytest.warns(UserWarning, match="set feature_limit=") as told:
        head.update(X[:150], Y[:150])
        head.update(X[150:], Y[150:])
    assert len(told) == 1 and told[0].filename == __file__
    limit = float(str(told[0].message).rpartition("=")[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        better = ol.ExactHead(Scaled(factor), feature_limit=limit)
        better.update(X, Y)
    assert (better.predict(X).argmax(1) == Y).double().mean() > 0.85


@pytest.mark.parametrize("factor", [1e-6, 1e-170])
def test_inputs_and_targets_that_round_away_are_told(factor: float) -> None:
    x = X.double()
    with pytest.warns(UserWarning, match="the inputs are so small .* set input_limit="):
        fed(factor * x, Y)
    with pytest.warns(UserWarning, match="the targets are so small .* set target_limit="):
        line().update(x, factor * x[:, 0])
