"""Data added, taken away, weighted and merged: the head equals one fed once with what remains."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch
from tests.exact.toys import (
    PROBE,
    X,
    Y,
    blobs,
    fed,
    line,
    maps,
    of_tasks,
    regression,
    same_bits,
    same_sums,
)

import orderless as ol
from orderless.exact import sums
from orderless.exact.sums import sample_keys
from orderless.io import digest


def random_walk(operations: int, seed: int, ledger: bool) -> None:
    """Batches of 1 to 500 samples are added, deleted or moved to another head and back. With a
    ledger, deletions of samples that are not in, or not so often, are tried on the way."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    x, y = blobs(2000, seed)
    x[::97] *= 40.0  # beyond the maps' inputs
    shared = maps(3, 12)

    def empty() -> ol.ExactHead:
        return ol.ExactHead(shared, feature_limit=2.0, calibration=8, ledger=ledger)

    head = empty()
    held = torch.zeros(len(x), dtype=torch.int64)  # weights in sixteenths
    refused = 0
    for _ in range(operations):
        rows = torch.randperm(len(x), generator=generator)[: min(number(1, 501), number(1, 501))]
        sixteenths = torch.randint(0, 33, (len(rows),), generator=generator)
        if number(0, 3) == 0:
            sixteenths = torch.full((len(rows),), 16)
        if ledger and (held[rows] < sixteenths).any():
            before = head.samples
            with pytest.raises(ValueError, match="ledger|without data"):
                head.forget(x[rows], y[rows], sample_weight=sixteenths / 16)
            assert head.samples == before
            refused += 1
        if number(0, 2):
            sixteenths = torch.minimum(sixteenths, held[rows]).neg()
        sign = 1 if sixteenths.sum() > 0 else -1
        weights = sixteenths.abs() / 16
        if number(0, 3) == 0:
            other = empty()
            other.update(x[rows], y[rows], sample_weight=weights)
            head = head + other if sign > 0 else head - other
        elif sign > 0:
            head.update(x[rows], y[rows], sample_weight=weights)
        else:
            head.forget(x[rows], y[rows], sample_weight=weights)
        held[rows] += sixteenths
    once = empty()
    for rows in (held > 0).nonzero()[:, 0].split(300):  # weights up to 16: the rest again
        left = held[rows]
        while left.any():
            now = left.clamp(max=256)
            once.update(x[rows], y[rows], sample_weight=now / 16)
            left = left - now
    assert head.samples == held.sum().item() / 16
    kept = int((sample_keys(x[held > 0]) % 8 == 0).sum())
    assert len(head.sums.counted["kept"].keys) == kept > 100
    assert same_bits(head, once)
    assert refused > operations // 2 or not ledger


@pytest.mark.filterwarnings("ignore:.*are clipped")
@pytest.mark.parametrize("operations", [60, pytest.param(10_000, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("ledger", [False, True])
def test_additions_deletions_and_merges_leave_no_trace(ledger, operations):
    random_walk(operations, 0, ledger)


# ---------------------------------------------------------------------- deletion


def test_everything_forgotten_is_a_new_head() -> None:
    new = ol.ExactHead(maps(), classes=10)
    head = fed(X, Y, classes=10)
    head.forget(X.flip(0), Y.flip(0))
    assert same_sums(head, new) and head.samples == 0 and head.columns == []
    assert torch.equal(head.predict(PROBE), new.predict(PROBE))
    assert same_sums(fed(X, Y) - fed(X, Y), new)


def test_tasks_and_values_are_forgotten_alike() -> None:
    head = of_tasks((0, 1, 2, 3, 4))
    rows = Y // 2 == 2
    head.forget(X[rows], Y[rows] % 2, task=2)
    assert same_bits(head, of_tasks((4, 3, 1, 0)))
    x, y = regression()
    y = torch.stack([y, 0 * y], 1)
    rest, both = line(), line()
    rest.update(x[20:], y[20:])
    both.update(x, y)
    both.forget(x[:20], y[:20])
    assert len(both.columns) == 2  # of zeros alone, but there
    assert same_bits(both, rest, x)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("calibration", [0, 16])
def test_what_was_never_there_is_not_forgotten(calibration):
    x, y = blobs(40)
    strange = blobs(40, seed=5)[0]
    head = fed(x, y, calibration=calibration)
    before = digest(head.state_dict())
    bad = {
        "other labels": (x, y + 10),
        "one twice": (torch.cat([x, x[:1]]), torch.cat([y, y[:1]])),
        "other inputs": (4 * x, y),
        "labels of others": (x, y.roll(1)),
        "three twice": (x[y == 1][:3].repeat(2, 1), torch.ones(6, dtype=torch.long)),
        "strangers of one class": (strange[y == 2], y[y == 2]),
        "strangers": (strange, y),
    }
    for inputs, labels in bad.values():
        with pytest.raises(ValueError, match="never learned all"):
            head.forget(inputs, labels)
    with pytest.raises(ValueError, match="never learned all"):
        head - fed(strange, y, calibration=calibration)
    with pytest.raises(ValueError, match="nothing can be taken"):
        ol.ExactHead(maps(), calibration=calibration) - head
    assert digest(head.state_dict()) == before


# ---------------------------------------------------------------------- several heads


def test_a_plus_b_is_one_head_fed_both():
    """In any order and grouping; the terms stay as they are, and sums can go on."""
    parts = [fed(X[rows], Y[rows], calibration=4) for rows in (Y < 3, Y == 3, Y > 3)]
    whole = fed(X, Y, calibration=4)
    before = [digest(part.state_dict()) for part in parts]
    joined = whole + ol.ExactHead(maps(), calibration=4)
    alone = sum([whole])
    for total in (parts[2] + parts[0] + parts[1], parts[0] + (parts[1] + parts[2]), sum(parts)):
        assert same_bits(total, whole)
    for total in (joined, alone):
        assert same_bits(total, whole)
        total.update(X[:5], Y[:5])
    assert (whole.samples, joined.samples, alone.samples) == (300, 305, 305)
    assert [digest(part.state_dict()) for part in parts] == before
    assert "3 maps, 40 features, 10 columns, 300 samples" in repr(whole)


def test_a_sum_that_is_moved_or_loaded_leaves_its_terms_as_they_are() -> None:
    """A sum shares the maps of its first term; "meta" is a device without data."""
    first = fed(X, Y)
    other = ol.ExactHead(maps(seed=5))
    other.update(X, Y)
    before = first.predict(PROBE)
    loaded = first + fed(X, Y)
    loaded.load_state_dict(other.state_dict())
    assert same_bits(loaded, other)
    moved = first + fed(X, Y)
    moved.to("meta")
    assert moved.sums.sums["gram"].low.is_meta and moved.grid.device.type == "meta"
    assert torch.equal(first.predict(PROBE), before)
    first.update(X[:1], Y[:1])
    assert same_bits(fed(X, Y).to("cpu"), fed(X, Y))


def of_values(columns: int, **options) -> ol.ExactHead:
    head = line(**options)
    head.update(X, X[:, :columns])
    return head


OTHERS = {  # (what is added to a head, or loaded into it, another head, words)
    "bits": (fed(X, Y), ol.ExactHead(maps(), bits=12), "fingerprint is .* here and .* there"),
    "calibration": (fed(X, Y), ol.ExactHead(maps(), calibration=3), "calibration is .* here and"),
    "targets": (fed(X, Y), fed(X, X[:, 0], targets="values", calibration=16), "target_limit is"),
    "seed": (fed(X, Y), ol.ExactHead(maps(seed=1)), "fingerprint"),
    "classes": (fed(X, Y, classes=10), fed(X, Y % 2, classes=2), "between 0 and 1, got 9"),
    "target_limit": (of_values(1, target_limit=32.0), of_values(1), "16.0 here and 32.0 there"),
    "more values": (of_values(2), of_values(1), "12 features and 1 targets, .* now have 12 and 2"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_heads_over_something_else_are_not_added(name):
    head, other, words = OTHERS[name]
    before = digest(other.state_dict())
    with pytest.raises(ValueError, match=words):
        other + head
    assert digest(other.state_dict()) == before


@pytest.mark.parametrize("name", ["bits", "calibration", "targets", "classes"])
def test_heads_over_something_else_are_not_loaded(name):
    head, other, words = OTHERS[name]
    before = digest(other.state_dict())
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(head.state_dict())
    assert digest(other.state_dict()) == before


def test_what_fits_in_one_direction_is_added_or_loaded():
    ten, two, _ = OTHERS["classes"]
    assert (ten + two).predict(X).shape == (len(X), 10)
    with pytest.raises(ValueError, match="another model"):
        ol.ExactHead(maps(width=41)).load_state_dict(ten.state_dict())


def test_sums_are_copied_into_a_state_and_out_of_it() -> None:
    head = fed(X, Y * 0)
    loaded = ol.ExactHead(maps())
    before = head.predictive(PROBE).mean
    state = head.state_dict()
    loaded.load_state_dict(state)
    state["sums"]["moments"]["low"].zero_()
    for each in (head, loaded):
        each.class_prior = None  # solve again
        assert torch.equal(each.predictive(PROBE).mean, before)


# ---------------------------------------------------------------------- all or nothing


CHANGES = {
    "add": lambda head, state: head.update(X[:50], Y[:50]),
    "plus": lambda head, state: head.forget(X[:50], Y[:50]),
    "empty": lambda head, state: head.update(X[:50], Y[:50]),
    "from_state": lambda head, state: head.load_state_dict(state),
}


@pytest.mark.parametrize("place", CHANGES)
def test_a_change_that_ends_in_an_error_is_none(place, monkeypatch):
    head = fed(X, Y)
    state = head.state_dict()
    monkeypatch.setattr(sums.HeadSums, place, Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        CHANGES[place](head, state)
    assert digest(head.state_dict()) == digest(state)


def test_updates_and_predictions_in_several_threads_are_those_of_one() -> None:
    x, y = blobs(200)
    head, alone = (ol.ExactHead(maps(2, 32), ledger=True) for _ in range(2))
    alone.update(x, y)
    right = alone.predict(PROBE)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda row: head.update(x[row : row + 1], y[row : row + 1]), range(200)))
        answers = list(pool.map(lambda _: alone.predict(PROBE), range(40)))
    assert head.samples == 200
    assert same_bits(head, alone)
    assert all(torch.equal(answer, right) for answer in answers)


def test_a_class_that_another_thread_adds_during_a_prediction_moves_no_label(monkeypatch) -> None:
    """What is asked for is answered by one solution, of the head before or after."""
    later = [(X[Y == 1], Y[Y == 1])]
    head = fed(X[Y != 1], Y[Y != 1])
    solve = ol.ExactHead.solution

    def meanwhile(self: ol.ExactHead) -> object:
        if later:
            self.update(*later.pop())
        return solve(self)

    monkeypatch.setattr(ol.ExactHead, "solution", meanwhile)
    assert torch.equal(head.outputs(PROBE), fed(X, Y).outputs(PROBE))


# ---------------------------------------------------------------------- weights


def test_a_weightless_sample_is_none_and_its_class_is_none() -> None:
    head = fed(X, Y, (Y != 4).double())
    assert same_bits(head, fed(X[Y != 4], Y[Y != 4]))
    head.update(X[:2], Y[:2], sample_weight=0.0)
    assert head.samples == 270
    for wrong in (-1.0, 17.0, 0.3, float("nan")):
        with pytest.raises(ValueError, match="multiples of 1/16"):
            head.update(X[:2], Y[:2], sample_weight=[1.0, wrong])
    with pytest.raises(ValueError, match=r"must be \[2\], got \[3\]"):
        head.update(X[:2], Y[:2], sample_weight=[1.0, 1.0, 1.0])


def test_a_ledger_has_16_bytes_a_sample_and_its_labels_are_not_renamed():
    head = fed(X, Y, ledger=True)
    assert sum(tensor.nbytes for tensor in head.sums.counted["ledger"]) == 16 * len(X)
    with pytest.raises(ValueError, match="drop_ledger"):
        head.relabelled(list(range(1, 11)), 11)
    head.drop_ledger()
    assert head.relabelled(list(range(1, 11)), 11).predict(X).shape == (len(X), 11)
