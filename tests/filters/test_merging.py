"""Processes that do not talk to each other train parts of an ensemble, which become one filter."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from tests.common import OPTIMIZERS, batches, dropout_mlp, mlp, train
from torch.testing import assert_close

import orderless as ol

KINDS = {
    "weighted": ol.WeightedParticleFilter,
    "linearized": partial(ol.WeightedParticleFilter, weighting="linearized"),
    "averaging": ol.AveragingParticles,
}


def started(kind: str, optimizer: str, indices, seed: int = 3, make=dropout_mlp):
    particles = ol.Ensemble(make, 5, seed=seed, indices=indices).double()
    return KINDS[kind](particles, OPTIMIZERS[optimizer](particles.parameters()))


def trained(pf: ol.GradientFilter, first: int, last: int) -> ol.GradientFilter:
    train(pf, [*batches(last, dtype=torch.float64)][first:])
    return pf


def assert_same(left: ol.GradientFilter, right: ol.GradientFilter) -> None:
    ours, theirs = (
        [
            dict(pf.particles.state_dict()),
            pf.weights,
            pf.log_evidence,
            pf.alive,
            pf.particles.indices,
        ]
        for pf in (left, right)
    )
    assert_close(ours, theirs, rtol=0, atol=1e-12)


def save_part(path: Path) -> None:
    """What each process does."""
    ol.save(path, trained(started("weighted", "adam", PARTS[path.name]), 0, 4))


PARTS = {"a": range(2), "b": range(2, 5)}


def test_two_processes_are_one_process(tmp_path):
    """Their filters merge into the one of a single process, and go on as that one does."""
    single = trained(started("weighted", "adam", None), 0, 4)
    files = [tmp_path / name for name in PARTS]
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        list(pool.map(save_part, files))
    loaded = [ol.load(path, into=started("weighted", "adam", PARTS[path.name])) for path in files]
    merged = ol.merge_filters(loaded)
    assert_same(merged, single)
    assert_same(trained(merged, 4, 7), trained(single, 4, 7))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_any_order_are_the_whole_also_with_a_dead_particle(kind, optimizer):
    filters = [started(kind, optimizer, indices) for indices in ([3, 0], [4, 1, 2], None)]
    for pf in filters:
        with torch.no_grad():
            dead = (pf.particles.indices == 4).nonzero()
            pf.particles.get_parameter("0.weight")[dead] = float("nan")
        trained(pf, 0, 3)
        for parameter in pf.particles.parameters():
            parameter.data.nan_to_num_(0.0)
    *parts, whole = filters
    assert whole.alive.tolist() == [True] * 4 + [False]
    assert_same(ol.merge_filters(parts), whole)


def part(indices: list[int], **options) -> ol.GradientFilter:
    return started("weighted", "sgd", indices, **options)


NO_PARTS = {
    "at least one filter": lambda: [],
    "share particles": lambda: [part([0, 1]), part([1, 2])],
    "seeds 3 and 4": lambda: [part([0]), part([1], seed=4)],
    "0 and 2 steps": lambda: [part([0]), trained(part([1]), 0, 2)],
    "different kinds": lambda: [part([0]), started("averaging", "sgd", [1])],
    "other networks": lambda: [part([0]), part([2], make=mlp)],
}


@pytest.mark.parametrize("message", NO_PARTS)
def test_what_is_no_part_of_one_training_is_refused(message):
    filters = NO_PARTS[message]()
    with pytest.raises(ValueError, match=message):
        ol.merge_filters(filters)


@pytest.mark.parametrize("indices", [[], [0, 0], [5], [-1]])
def test_indices_are_different_numbers_below_n(indices):
    with pytest.raises(ValueError, match="different numbers below 5"):
        ol.Ensemble(mlp, 5, indices=indices)
