"""The exact filter: no order, closed forms, evidence as a density, errors that change nothing."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.exact.blobs import (
    FIVE_TASKS,
    blobs,
    ensemble,
    in_order,
    regression,
    same_bits,
    same_state,
)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import orderless as ol
from orderless.exact import ExactHead
from orderless.features import Concatenate, RandomReLU

# ---------------------------------------------------------------------- no order


@pytest.mark.slow
@pytest.mark.parametrize("across", ["max", "probs"])
def test_ten_orders_of_the_tasks_give_the_same_bits(across: str) -> None:
    x, _ = blobs(50, seed=1)
    first = in_order((0, 1, 2, 3, 4), across_tasks=across)
    orders = list(itertools.permutations(FIVE_TASKS))[7::12]
    assert len(orders) == 10
    for order in orders:
        assert same_bits(first, in_order(order, across_tasks=across), x)


@pytest.mark.parametrize("size", [1, 7, 512])
def test_shuffled_samples_in_any_batch_size_give_the_same_bits(size: int) -> None:
    x, y = blobs()
    whole = ExactHead(ensemble(), calibration=4)
    whole.update(x, y)
    shuffled = ExactHead(ensemble(), calibration=4)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(size))
    for part in order.split(size):
        shuffled.update(x[part], y[part])
    assert same_bits(whole, shuffled, blobs(50, seed=1)[0])


@pytest.mark.parametrize("size", [1, 7, 512])
def test_an_ordinary_network_as_feature_map_has_no_order_either(size: int) -> None:
    """Its float32 kernels differ by batch size; blocks of one size keep that away."""
    x, y = blobs()
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(12, 37), nn.Tanh(), nn.BatchNorm1d(37), nn.Linear(37, 19))
    filters = [ExactHead(body, block_size=64) for _ in range(2)]
    filters[0].update(x, y)
    for part in torch.randperm(len(x)).split(size):
        filters[1].update(x[part], y[part])
    assert same_bits(*filters, blobs(50, seed=1)[0])


def test_blocks_of_one_size_give_a_sample_the_same_features_in_any_batch() -> None:
    """A grid so fine that a difference in the last bits of float32 would show."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 100))
    grid = ExactHead(body, bits=20, feature_limit=2.0, block_size=64).grid
    x = torch.randn(192, 300)

    def features(rows: Tensor, size: int) -> Tensor:
        return torch.cat([grid(part)[0] for part in x[rows].split(size)])

    whole, order = features(torch.arange(192), 64), torch.randperm(192)
    for size in (1, 7, 64):
        assert torch.equal(features(order, size), whole[order])


def test_a_plus_b_is_one_filter_fed_both() -> None:
    x, y = blobs()
    parts = [ExactHead(ensemble(), calibration=4) for _ in range(3)]
    for part, rows in zip(parts, (y < 3, y == 3, y > 3), strict=True):
        part.update(x[rows], y[rows])
    whole = ExactHead(ensemble(), calibration=4)
    whole.update(x, y)
    test = blobs(50, seed=1)[0]
    before = parts[0].predict(test)
    assert same_bits(parts[2] + parts[0] + parts[1], whole, test)
    assert same_bits(parts[0] + (parts[1] + parts[2]), whole, test)
    assert torch.equal(parts[0].predict(test), before)
    empty = ExactHead(ensemble(), calibration=4)
    joined = whole + empty
    joined.update(x[:5], y[:5])
    assert whole.samples == 300 and joined.samples == 305


def test_the_sums_are_those_of_integers() -> None:
    """Python's integers as oracle for Phi^T Phi."""
    x, y = blobs(40)
    rb = ExactHead(ensemble(n=1, width=6))
    rb.update(x, y)
    scale = 4096
    rows = [[int(v) for v in row] for row in (rb.grid(x)[0].double() * scale).tolist()]
    assert rb.sums is not None
    for i, j in itertools.product(range(6), range(6)):
        expected = sum(row[i] * row[j] for row in rows)
        assert int(rb.sums.gram.low[0, max(i, j), min(i, j)].item() * scale**2) == expected


# ---------------------------------------------------------------------- weights and predictions


def test_weights_are_the_normalised_evidence() -> None:
    x, y = blobs(60)
    rb = ExactHead(ensemble(n=4), weights="evidence")
    rb.update(x, y)
    assert torch.allclose(rb.log_weights, rb.particle_log_evidence.log_softmax(0), atol=1e-9)
    mean = rb.particle_log_evidence.logsumexp(0) - math.log(4)
    assert torch.allclose(rb.log_evidence, mean)
    uniform = ExactHead(ensemble(n=4))
    uniform.update(x, y)
    assert uniform.ess.item() == pytest.approx(4.0)
    assert torch.allclose(uniform.predict(x), uniform.outputs(x).softmax(-1).mean(0))


def test_evidence_prefers_features_that_carry_the_signal() -> None:
    x, y = blobs()
    blind = RandomReLU(12, 40)
    nn.init.zeros_(blind.weight[:, :10])
    features = ol.Ensemble.from_modules([RandomReLU(12, 40), blind])
    rb = ExactHead(features, weights="evidence")
    rb.update(x, y)
    assert rb.weights[0] > 0.999


def test_domain_task_and_class_predictions_read_the_same_head() -> None:
    x, y = blobs()
    # without samples: with them, each is judged by how it answers
    rb = in_order((0, 1, 2, 3, 4), weights="uniform", calibration=0)
    scores = rb.predictive(x).mean  # columns (0, 0), (0, 1), (1, 0), ...: the ten classes
    classes = ExactHead(ensemble(), weights="uniform", calibration=0)
    classes.update(x, y)
    assert rb.columns == [(t, c) for t in range(5) for c in range(2)]
    assert torch.allclose(scores, classes.predictive(x).mean, atol=1e-10)
    single = in_order((0, 1, 2, 3, 4))
    chosen = single.weights.argmax()
    best = single.outputs(x)[chosen].argmax(1)
    features = single.grid(x)[chosen].double()
    assert torch.equal(best, single.heads[chosen].outputs(features).argmax(1) % 2)
    mine = y // 2 == 3
    within = rb.predict(x[mine], task=3)
    assert within.shape == (60, 2) and torch.allclose(within.sum(1), torch.ones(60).double())
    assert (within.argmax(1) == y[mine] % 2).float().mean() > 0.9


def test_probabilities_across_tasks_are_sums_over_tasks() -> None:
    x, y = blobs()
    rb = in_order((0, 1, 2, 3, 4))
    classes = ExactHead(ensemble(), calibration=0)
    classes.update(x, y)
    plain = in_order((0, 1, 2, 3, 4), calibration=0)
    ten = classes.predict(x).unflatten(1, (5, 2)).sum(1)
    assert torch.allclose(plain.predict(x, across_tasks="probs"), ten, atol=1e-8)
    assert torch.allclose(rb.predict(x).sum(1), torch.ones(len(x)).double())


def test_probabilities_are_calibrated_on_fresh_data() -> None:
    """The share of right answers among 5,000 new samples matches the mean confidence."""
    x, y = blobs(2000)
    rb = ExactHead(ensemble(width=100))
    rb.update(x, y)
    test, truth = blobs(5000, seed=7)
    confidence, guess = rb.predict(test).max(1)
    assert abs(confidence.mean() - (guess == truth).double().mean()) < 0.04


def test_classes_appear_when_they_appear() -> None:
    x, y = blobs()
    rb = ExactHead(ensemble(), classes=12)
    assert torch.allclose(rb.predict(x[:4]), torch.full((4, 12), 1 / 12).double())
    rb.update(x[y == 4], y[y == 4])
    assert torch.equal(rb.predict(x[:4]).argmax(1), torch.full((4,), 4))
    rb.update(x[y == 2], y[y == 2])
    assert (rb.predict(x)[:, [0, 1, 3, 5, 11]] == 0).all()
    assert rb.columns == [(-1, 2), (-1, 4)]


@pytest.mark.slow
def test_no_bit_of_an_answer_depends_on_what_else_is_asked() -> None:
    x, y = blobs()
    rb = ExactHead(ensemble(width=130))
    rb.update(x, y)
    test = blobs(300, seed=1)[0]
    whole = rb.predict(test), rb.predictive(test).variance
    for size, count in ((1, 40), (7, 300), (299, 300)):
        parts = [
            (rb.predict(part), rb.predictive(part).variance) for part in test[:count].split(size)
        ]
        for one, cut in zip(whole, zip(*parts, strict=True), strict=True):
            assert torch.equal(one[:count], torch.cat(cut))


def test_variance_grows_away_from_the_data() -> None:
    x, y = regression()
    rb = ExactHead(nn.Identity(), targets="values")
    rb.update(x, y)
    near, far = rb.predictive(x[:1]).variance, rb.predictive(x[:1] + 7.0).variance
    assert far > 2 * near


# ---------------------------------------------------------------------- state and bad input


def test_a_saved_filter_goes_on_as_if_nothing_had_happened(tmp_path) -> None:  # type: ignore[no-untyped-def]
    x, y = blobs()
    rb = in_order((0, 1, 2, 3, 4))
    ol.save(tmp_path / "rb.safetensors", rb)
    again = ExactHead(ensemble(seed=77), classes=2)
    ol.load(tmp_path / "rb.safetensors", into=again)
    assert same_bits(rb, again, x)
    for each in (rb, again):
        each.update(x[:9], y[:9] % 2, task=7)
    assert same_bits(rb, again, x)
    other = ExactHead(ensemble(width=41), classes=2)
    with pytest.raises(ValueError, match="another model"):
        other.load_state_dict(rb.state_dict())
    coarse = ExactHead(ensemble(), classes=2, bits=12)
    with pytest.raises(ValueError, match="different feature maps or grids"):
        coarse.load_state_dict(rb.state_dict())


class SpoiltAt(nn.Module):
    """Features that are NaN for samples whose first value is above 50."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 50, torch.nan, x)


@pytest.mark.parametrize("maps", ["exact", "an ordinary network"])
@pytest.mark.parametrize(
    "mode",
    [partial(torch.autocast, "cpu", torch.bfloat16), torch.inference_mode, torch.enable_grad],
    ids=["autocast", "inference", "grad"],
)
def test_no_mode_around_a_call_changes_a_bit(mode: Any, maps: str) -> None:
    x, y = blobs()
    frozen = nn.Sequential(nn.Linear(x.shape[1], 30), nn.ReLU())

    def make() -> ExactHead:
        return ExactHead(ensemble() if maps == "exact" else frozen)

    expected = make()
    expected.update(x, y)
    with mode():
        rb = make() + make()
        rb.update(x[:200], y[:200])
        rb.update(x[250:], y[250:])
        rb.forget(x[:50], y[:50])
        rb.load_state_dict(rb.state_dict())
    for rows in (slice(50), slice(200, 250)):
        rb.update(x[rows], y[rows])
    with mode():
        answers = rb.predict(x), rb.predictive(x).variance, rb.log_evidence
    assert same_bits(rb, expected, x)
    theirs = expected.predictive(x).variance, expected.log_evidence
    for ours, wanted in zip(answers, (expected.predict(x), *theirs), strict=True):
        assert torch.equal(ours, wanted)


def test_bad_input_changes_nothing() -> None:
    x, y = blobs()
    rb = ExactHead(SpoiltAt(), classes=10, block_size=16, calibration=20)
    rb.update(x[:100], y[:100] % 8)
    before, prediction = rb.state_dict(), rb.predict(x)
    spoilt = x.clone()
    spoilt[290, 0] = 60.0  # in the last block: all others are absorbed and taken back
    bad = [
        (spoilt, y, {}, "not finite"),
        (torch.full_like(x, torch.inf), y, {}, "not finite"),
        (x, y + 1, {}, "between 0 and 9, got 10"),
        (x, y - 1, {}, "between 0 and 9, got -1"),
        (x, y.float(), {}, "whole numbers"),
        (x, y[:-1], {}, "300 samples and y has 299"),
        (x, y, {"task": 1}, "without a task"),
        (x, y, {"task": 2**40}, "task must be a whole number between 0 and 1073741823"),
        (x.to(torch.complex64), y, {}, "real numbers"),
        (x.to_sparse(), y, {}, "densely"),
        (x[:, :5], y, {}, "5 features, but 12"),
        (x.unsqueeze(2), y, {}, "Flatten"),
    ]
    for inputs, targets, options, message in bad:
        with pytest.raises((ValueError, TypeError), match=message):
            rb.update(inputs, targets, **options)  # type: ignore[arg-type]
    after = rb.state_dict()
    assert same_state(before["sums"], after["sums"])
    assert torch.equal(rb.predict(x), prediction)
    for inputs in (x.numpy(), x.tolist(), x.to(torch.complex64), x.to_sparse()):
        with pytest.raises(TypeError, match="x must (be a tensor|hold real numbers)"):
            rb.predict(inputs)


@pytest.mark.parametrize(
    "kind", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64]
)
def test_labels_and_tasks_are_whole_numbers_of_any_kind(kind: torch.dtype) -> None:
    x, y = blobs()
    rb, other = ExactHead(ensemble()), ExactHead(ensemble())
    rb.update(x, y, task=1)
    other.update(x, y.to(kind), task=np.int64(1))
    assert same_bits(rb, other, x)
    for each in (rb, other):
        each.forget(x[:50], y[:50].to(kind), task=torch.tensor(1))
    assert same_bits(rb, other, x)


class InterruptedAfter(TorchDispatchMode):
    """Ctrl-C right after so many sums have been added to."""

    def __init__(self, additions: int) -> None:
        super().__init__()
        self.left = additions

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten.addmm_.default, torch.ops.aten.index_add_.default):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return result


# 2 blocks x (3 particles x 2 sums + 1): within a particle, between two, between blocks, at the end
@pytest.mark.parametrize("additions", [1, 2, 7, 8, 14])
@pytest.mark.parametrize("first", [0, 20], ids=["at the first update", "later"])
def test_an_update_interrupted_anywhere_changes_nothing(first: int, additions: int) -> None:
    x, y = blobs(1500)
    rb, undisturbed = (ExactHead(ensemble(), calibration=4) for _ in range(2))
    for each in (rb, undisturbed) if first else ():
        each.update(x[:first], y[:first] % 8)  # two classes are still to come
    with pytest.raises(KeyboardInterrupt), InterruptedAfter(additions):
        rb.update(x[first:], y[first:])
    assert rb.samples == first and len(rb.columns) == (8 if first else 0)
    for each in (rb, undisturbed):
        each.update(x[first:], y[first:])
    assert same_bits(rb, undisturbed, blobs(50, seed=1)[0])


def test_different_feature_maps_do_not_merge() -> None:
    x, y = blobs()
    a, b = (ExactHead(ensemble(seed=seed)) for seed in (0, 1))
    a.update(x, y)
    b.update(x, y)
    with pytest.raises(ValueError, match="different feature maps"):
        a + b
    fine = ExactHead(ensemble(), bits=12)
    with pytest.raises(ValueError, match="different feature maps"):
        a + fine


def test_heads_that_do_not_fit_do_not_merge_nor_load() -> None:
    x, y = blobs()
    two, ten = (ExactHead(ensemble(), classes=count) for count in (2, 10))
    two.update(x, y % 2)
    ten.update(x, y)
    before = two.predict(x)
    with pytest.raises(ValueError, match="there is a label 9 there, but classes=2 here"):
        two + ten
    with pytest.raises(ValueError, match="there is a label 9 there, but classes=2 here"):
        two.load_state_dict(ten.state_dict())
    assert torch.equal(two.predict(x), before)
    assert (ten + two).predict(x).shape == (len(x), 10)

    one, both = (ExactHead(ensemble(), targets="values") for _ in range(2))
    one.update(x, x[:, 0])
    both.update(x, x[:, :2])
    with pytest.raises(ValueError, match="targets have 1 values here and 2 there"):
        one + both  # the second would count as 0 wherever there was only one
    with pytest.raises(ValueError, match=r"values within \+-16.0 here and classes there"):
        one + ten
    wide = ExactHead(ensemble(), targets="values", target_limit=32.0)
    with pytest.raises(ValueError, match=r"\+-16.0 here and values within \+-32.0 there"):
        one + wide


def test_more_features_than_memory_are_refused() -> None:
    rb = ExactHead(nn.Identity(), block_size=1)
    with pytest.raises(MemoryError, match="use at most"):
        rb.update(torch.zeros(1, 1_000_000), torch.zeros(1, dtype=torch.long))
    assert rb.samples == 0


def test_what_is_no_tensor_is_refused_by_name() -> None:
    rb = ExactHead(RandomReLU(3, 4), classes=2)
    x, y = torch.zeros(1, 3), torch.tensor([0])
    for given, name in (((x.tolist(), y), "x"), ((x, y.tolist()), "y")):
        with pytest.raises(TypeError, match=f"{name} must be a tensor, got list"):
            rb.update(*given)
    assert rb.samples == 0


def test_an_update_leaves_the_mode_of_every_layer_as_it_was() -> None:
    maps = ol.Ensemble(lambda: nn.Sequential(nn.Linear(12, 8), nn.Dropout()), 2)
    maps.train()
    maps.template[1].eval()
    x, y = blobs(20)
    ExactHead(maps).update(x, y)
    assert [layer.training for layer in maps.template] == [True, False]


def test_inputs_that_the_maps_would_clip_are_told() -> None:
    maps = [RandomReLU(3, 4), RandomReLU(3, 4, input_limit=64.0)]
    x = torch.tensor([[0.0, 1.0, 200.0]])
    for module, share in ((maps[0], "33 %"), (Concatenate(*maps), "33 %"), (maps[1], "33 %")):
        rb = ExactHead(module, classes=2)
        with pytest.warns(UserWarning, match=f"{share} of the inputs lie beyond"):
            rb.update(x, torch.tensor([0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rb = ExactHead(maps[1], classes=2, feature_limit=1024.0)
        rb.update(x / 4, torch.tensor([0]))
        ExactHead(nn.Linear(3, 4), classes=2).update(x / 100, torch.tensor([0]))


def test_clipped_values_are_counted() -> None:
    rb = ExactHead(nn.Identity(), feature_limit=2.0)
    with pytest.warns(UserWarning, match=r"50 % of the features .* set feature_limit=32"):
        rb.update(torch.tensor([[1.0, 3.0], [-9.0, 0.5]]), torch.tensor([0, 1]))
    assert rb.clipped == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "best"}, "weights must be one of"),
        ({"prior_precision": 1.0}, "both"),
        ({"feature_limit": 3.0}, "power of two"),
        ({"feature_limit": 4.0000001}, "power of two"),  # in float32 it is one
        ({"targets": "values", "target_limit": 3.0}, "power of two"),
        ({"bits": 30}, "between 1 and 20"),
        ({"classes": 0}, "between 1 and 1048576, got 0"),
        ({"classes": 2.5}, "a whole number between 1 and 1048576, got 2.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExactHead(ensemble(), **options)  # type: ignore[arg-type]


def test_reduced_precision_is_refused() -> None:
    features = ol.Ensemble(lambda: RandomReLU(12, 4), 2, precision="bf16")
    with pytest.raises(ValueError, match="precision='float32'"):
        ExactHead(features)


def test_targets_beyond_the_limit_are_refused() -> None:
    rb = ExactHead(nn.Identity(), targets="values")
    with pytest.raises(ValueError, match="larger target_limit"):
        rb.update(torch.ones(1, 3), torch.tensor([17.0]))
    with pytest.raises(TypeError, match="floats"):
        rb.update(torch.ones(1, 3), torch.tensor([1]))
    assert rb.samples == 0
