"""Data added, taken away, weighted and merged: the filter equals one fed once with what remains."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.exact.blobs import (
    PROBE,
    blobs,
    ensemble,
    fed,
    in_order,
    regression,
    same_bits,
    same_state,
)
from torch import nn

import orderless as ol
from orderless.exact import ExactHead, sums
from orderless.exact.solution import ratios_of
from orderless.exact.sums import keys_of

# ---------------------------------------------------------------------- any sequence


def random_walk(operations: int, seed: int) -> None:
    """Batches of 1 to 500 samples are added, deleted or moved to another filter and back."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    x, y = blobs(2000, seed)
    x[::97] *= 40.0  # beyond the maps' inputs
    maps = ensemble(3, 12)

    def empty() -> ExactHead:
        return ExactHead(maps, feature_limit=2.0, calibration=8)

    rb, held = empty(), torch.zeros(len(x), dtype=torch.int64)  # weights in sixteenths
    for _ in range(operations):
        size = min(number(1, 501), number(1, 501))
        rows = torch.randperm(len(x), generator=generator)[:size]
        sixteenths = torch.randint(0, 33, (size,), generator=generator)
        if number(0, 3) == 0:
            sixteenths = torch.full((size,), 16)
        if number(0, 2):
            sixteenths = torch.minimum(sixteenths, held[rows]).neg()
        parts = [(rows, sixteenths)]
        if number(0, 2):
            some = number(1, size + 1)
            parts = list(zip(rows.split(some), sixteenths.split(some), strict=True))
        for part, amount in parts:
            method, weights = (rb.update if amount.sum() > 0 else rb.forget), amount.abs() / 16
            if number(0, 3) == 0:
                other = empty()
                other.update(x[part], y[part], sample_weight=weights)
                rb = rb + other if amount.sum() > 0 else (rb - other if other.samples else rb)
            elif weights.any():
                method(x[part], y[part], sample_weight=weights)
            held[part] += amount
    once = empty()
    kept = held > 0
    for rows in kept.nonzero()[:, 0].split(300):  # weights up to 16: the rest again
        left = held[rows]
        while left.any():
            now = left.clamp(max=256)
            once.update(x[rows], y[rows], sample_weight=now / 16)
            left = left - now
    assert rb.samples == held.sum().item() / 16
    assert rb.sums is not None and rb.sums.kept is not None
    assert len(rb.sums.kept.keys) == int((keys_of(x[kept]) % 8 == 0).sum()) > 100
    assert rb.clipped == once.clipped
    assert same_bits(rb, once, PROBE)


@pytest.mark.filterwarnings("ignore:.*are clipped")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_additions_deletions_and_merges_leave_no_trace(seed: int) -> None:
    random_walk(60, seed)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*are clipped")
def test_ten_thousand_additions_deletions_and_merges_leave_no_trace() -> None:
    random_walk(10_000, 2)


# ---------------------------------------------------------------------- deletion


def test_what_is_forgotten_was_never_there(tmp_path: Path) -> None:
    x, y = blobs()
    rb = fed(x, y)
    gone = (y == 3) | (torch.arange(300) > 250)
    for rows in gone.nonzero()[:, 0].flip(0).split(7):
        rb.forget(x[rows], y[rows])
    assert (-1, 3) not in rb.columns
    assert same_bits(rb, fed(x[~gone], y[~gone]), PROBE)
    assert same_bits(fed(x, y) - fed(x[gone], y[gone]), rb, PROBE)
    files = [tmp_path / "a", tmp_path / "b"]
    for path, each in zip(files, (rb, fed(x[~gone], y[~gone])), strict=True):
        ol.save(path, each)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_everything_forgotten_is_a_new_filter() -> None:
    x, y = blobs()
    rb, new = fed(x, y, classes=10), ExactHead(ensemble(), classes=10)
    rb.forget(x.flip(0), y.flip(0))
    assert same_state(rb.state_dict(), new.state_dict()) and rb.samples == 0 and rb.columns == []
    assert torch.equal(rb.predict(PROBE), new.predict(PROBE))
    assert same_state((fed(x, y) - fed(x, y)).state_dict(), new.state_dict())


def test_tasks_and_values_are_forgotten_alike() -> None:
    x, y = blobs()
    rb = in_order((0, 1, 2, 3, 4))
    mine = y // 2 == 2
    rb.forget(x[mine], y[mine] % 2, task=2)
    assert same_bits(rb, in_order((4, 3, 1, 0)), PROBE)
    x, y = regression()
    values = [ExactHead(nn.Identity(), targets="values") for _ in range(2)]
    values[0].update(x, torch.stack([y, 0 * y], 1))
    values[0].forget(x[:20], torch.stack([y[:20], 0 * y[:20]], 1))
    values[1].update(x[20:], torch.stack([y[20:], 0 * y[20:]], 1))
    assert len(values[0].columns) == 2  # of zeros alone, but there
    assert same_bits(*values, x)


def test_what_was_never_there_is_not_forgotten() -> None:
    x, y = blobs(40)
    rb = fed(x, y)
    before, prediction = rb.state_dict(), rb.predict(PROBE)
    strange = blobs(40, seed=5)[0]
    bad = [
        (x, y + 10, "no sample of label 10 is here"),
        (torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), "never all in it"),
        (4 * x, y, "squared features would fall below 0"),
        (x, y.roll(1), "a column would have no samples but some of their features"),
        (x[y == 1][:3].repeat(2, 1), torch.ones(6, dtype=torch.long), "fewer than 0 samples"),
        (strange[y == 2], y[y == 2], "never all in it"),
        (strange, y, "never all in it"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for inputs, labels, message in bad:
            with pytest.raises(ValueError, match=message):
                rb.forget(inputs, labels)
        with pytest.raises(ValueError, match="never all in it"):
            rb - fed(strange, y)
        with pytest.raises(ValueError, match="nothing can be taken"):
            ExactHead(ensemble()) - rb
    assert same_state(before, rb.state_dict()) and torch.equal(rb.predict(PROBE), prediction)


def test_clipped_goes_down_again() -> None:
    rb = ExactHead(nn.Identity(), feature_limit=2.0)
    x, y = torch.tensor([[1.0, 3.0], [-9.0, 0.5]]), torch.tensor([0, 1])
    with pytest.warns(UserWarning, match="clipped"):
        rb.update(x, y, sample_weight=[1.0, 2.5])
    assert rb.clipped == 3.5
    rb.forget(x[:1], y[:1])
    assert rb.clipped == 2.5


def test_a_sum_of_filters() -> None:
    x, y = blobs()
    thirds = [fed(x[i::3], y[i::3]) for i in range(3)]
    total = sum(thirds)
    assert same_bits(total, fed(x, y), PROBE)
    alone = sum([thirds[0]])
    alone.update(x[:1], y[:1])
    assert thirds[0].samples == 100 and alone.samples == 101
    assert "3 maps, 40 features, 10 columns, 300 samples" in repr(total)


# ---------------------------------------------------------------------- samples that are kept


def test_a_state_loaded_into_a_sum_leaves_its_terms_as_they_are() -> None:
    """A sum shares the maps of its first term, and the state brings maps of its own."""
    x, y = blobs()
    first, other = fed(x, y), ExactHead(ensemble(seed=5))
    other.update(x, y)
    before, total = first.predict(PROBE), first + fed(x, y)
    total.load_state_dict(other.state_dict())
    assert torch.equal(first.predict(PROBE), before)
    assert same_bits(total, other, PROBE)


def test_sums_of_one_column_are_copied_into_a_state_and_out_of_it() -> None:
    """The transpose of one column is contiguous already, so `contiguous` alone makes no copy."""
    x, y = blobs()
    rb, loaded = fed(x, y * 0), ExactHead(ensemble())
    before, state = rb.predictive(PROBE), rb.state_dict()
    loaded.load_state_dict(state)
    state["sums"]["moments"].zero_()
    for each in (rb, loaded):
        each.class_prior = None  # solve again
        assert torch.equal(each.predictive(PROBE).mean, before.mean)


def test_a_state_that_does_not_fit_into_memory_changes_nothing(monkeypatch) -> None:
    x, y = blobs()
    rb, other = fed(x, y), ExactHead(ensemble(seed=5))
    other.update(x, y)
    state, before = other.state_dict(), rb.state_dict()
    monkeypatch.setattr(sums, "check_memory", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        rb.load_state_dict(state)
    assert same_state(rb.state_dict(), before)


@pytest.mark.parametrize("change", ["update", "forget"])
def test_a_change_that_ends_in_an_error_is_undone(change: str, monkeypatch) -> None:
    x, y = blobs()
    rb = fed(x, y)
    before = rb.state_dict()
    with monkeypatch.context() as patch:
        failing = Mock(side_effect=MemoryError)
        patch.setattr(sums.HeadSums, "impossible" if change == "forget" else "plus", failing)
        with pytest.raises(MemoryError):
            getattr(rb, change)(x[:50], y[:50])
    assert same_state(rb.state_dict(), before)


def test_equal_numbers_have_equal_keys_and_one_in_so_many_is_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (40_000, 2, 6), generator=generator)
    assert torch.equal(keys_of(x), keys_of(x.float())) and torch.equal(
        keys_of(x), keys_of(x.byte())
    )
    assert torch.equal(keys_of(-0.0 * x[:9].double()), keys_of(0 * x[:9]))
    assert len(keys_of(x).unique()) == len(x.flatten(1).unique(dim=0))
    distinct = x.flatten(1).unique(dim=0)
    for share in (2, 16, 31):  # within four standard errors of 1 / share
        count, expected = int((keys_of(distinct) % share == 0).sum()), len(distinct) / share
        assert abs(count - expected) < 4 * expected**0.5


def test_copies_of_a_sample_are_kept_once_and_leave_when_the_last_one_does() -> None:
    x, y = blobs(40)
    rb = fed(x, y, calibration=1)
    rb.update(x[:5], (y[:5] + 1) % 10)  # the same inputs under another label
    rb.update(x[:5], y[:5], sample_weight=torch.full((5,), 2.5))
    assert rb.sums is not None and rb.sums.kept is not None
    kept = rb.sums.kept
    assert len(kept.keys) == 45 and kept.weights.sum() == 57.5 and (kept.keys.diff() >= 0).all()
    rb.forget(x[:5], y[:5], sample_weight=torch.full((5,), 3.5))
    rb.forget(x[:5], (y[:5] + 1) % 10)
    assert same_bits(rb, fed(x[5:], y[5:], calibration=1), PROBE)


def test_filters_that_keep_other_samples_do_not_merge_nor_load() -> None:
    x, y = blobs(40)
    with pytest.raises(ValueError, match="one sample in 2 is kept here and one in 3 there"):
        fed(x, y, calibration=2) + fed(x, y, calibration=3)
    with pytest.raises(ValueError, match="build this head with calibration=2"):
        fed(x, y, calibration=3).load_state_dict(fed(x, y, calibration=2).state_dict())


# ---------------------------------------------------------------------- weights


def test_a_whole_weight_is_repetition_to_the_bit() -> None:
    x, y = blobs()
    times = torch.arange(300) % 4
    assert same_bits(
        fed(x, y, times), fed(x.repeat_interleave(times, 0), y.repeat_interleave(times)), PROBE
    )
    quarters = fed(x, y, torch.full((300,), 0.25))
    for _ in range(3):
        quarters.update(x, y, sample_weight=torch.full((300,), 0.25))
    assert same_bits(quarters, fed(x, y), PROBE)


def test_a_weightless_sample_is_none_and_its_class_is_none() -> None:
    x, y = blobs()
    weights = (y != 4).double()
    rb = fed(x, y, weights)
    assert (-1, 4) not in rb.columns and same_bits(rb, fed(x[y != 4], y[y != 4]), PROBE)
    for wrong in (-1.0, 17.0, 0.3, float("nan")):
        with pytest.raises(ValueError, match="multiples of 1/16"):
            rb.update(x[:2], y[:2], sample_weight=[1.0, wrong])
    with pytest.raises(ValueError, match=r"must be \[2\], one per sample, got \(3,\)"):
        rb.update(x[:2], y[:2], sample_weight=[1.0, 1.0, 1.0])


def test_a_uniform_prior_is_what_balanced_weights_give_where_classes_scatter_alike() -> None:
    """Two classes with the same scatter around other means; one comes eight times as often."""
    generator = torch.Generator().manual_seed(0)
    noise = (torch.randn(64, 5, generator=generator, dtype=torch.float64) * 256).round() / 256
    x = torch.cat([noise, noise + 0.5])
    y = torch.arange(2).repeat_interleave(64)
    weights = torch.where(y == 0, 8.0, 1.0)
    filters = [ExactHead(nn.Identity(), class_prior=p) for p in (None, "uniform")]
    filters[0].update(x, y, sample_weight=torch.full((128,), 4.5, dtype=torch.float64))
    filters[1].update(x, y, sample_weight=weights)
    balanced, prior = (rb.predictive(x) for rb in filters)
    assert torch.allclose(balanced.mean, prior.mean, atol=1e-6)  # searches end within 1e-5
    filters[1].class_prior = [0.9, 0.1]
    assert (filters[1].predictive(x).mean[:, 0] > prior.mean[:, 0]).all()
    with pytest.raises(ValueError, match="a list of shares .*, got 'flat'"):
        filters[1].class_prior = "flat"


def test_a_uniform_prior_is_one_over_labels_whatever_tasks_have_them() -> None:
    columns, counts = [(0, 0), (0, 1), (1, 0)], torch.tensor([6.0, 1.0, 2.0])
    expected = [9 / 4, 9 / 2, 9 / 4]  # nine samples, half of them of either label
    assert torch.allclose(ratios_of("uniform", columns, counts) * counts, torch.tensor(expected))


def test_shares_of_a_prior_may_be_an_array() -> None:
    x, y = blobs(100)
    shares = [1.0 + label for label in range(10)]
    filters = [fed(x, y, class_prior=prior) for prior in (shares, np.array(shares))]
    assert torch.equal(filters[0].predict(x), filters[1].predict(x))
    given = np.array(shares)
    rb = fed(x, y, class_prior=given)
    given[:] = given[::-1]  # the caller's own array
    assert torch.equal(rb.predict(x), filters[0].predict(x))
    with pytest.raises(ValueError, match="a positive share per label"):
        rb.class_prior = [1.0, math.inf]


def test_values_have_no_class_prior() -> None:
    x, y = blobs(100)[0], torch.sin(torch.arange(200.0)).view(100, 2)
    rb = fed(x, y, targets="values")
    before = rb.predict(x)
    rb.class_prior = "uniform"
    assert torch.equal(rb.predict(x), before)


def test_a_rare_class_is_found_with_a_uniform_prior() -> None:
    x, y = blobs(4000)
    keep = (y != 9) | (torch.arange(4000) % 100 == 9)
    test, truth = blobs(1000, seed=7)

    def recall(**options: Any) -> float:
        guess = fed(x[keep], y[keep], **options).predict(test).argmax(1)
        return (guess[truth == 9] == 9).double().mean().item()

    assert recall(class_prior="uniform") > recall() + 0.2
