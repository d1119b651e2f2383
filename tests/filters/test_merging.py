"""Processes that do not talk to each other train parts of an ensemble, which become one filter."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from tests.filters.oracles import batches, cross_entropy, dropout_mlp, mlp

import orderless as ol

KINDS = {
    "weighted": ol.WeightedParticleFilter,
    "linearized": partial(ol.WeightedParticleFilter, weighting="linearized"),
    "averaging": ol.AveragingParticles,
}
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "adam": partial(torch.optim.Adam, lr=0.01),
}


def started(kind: str, optimizer: str, indices, seed: int = 3) -> ol.GradientFilter:
    particles = ol.Ensemble(dropout_mlp, 5, seed=seed, indices=indices).double()
    return KINDS[kind](particles, OPTIMIZERS[optimizer](particles.parameters()))


def train(pf: ol.GradientFilter, first: int, last: int) -> ol.GradientFilter:
    data = list(batches(last, dtype=torch.float64))[first:]
    for x, y in data:
        pf.step(lambda x=x, y=y: cross_entropy(pf.particles(x), y))
    return pf


def assert_same(left: ol.GradientFilter, right: ol.GradientFilter) -> None:
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
    for name, tensor in right.particles.state_dict().items():
        close(left.particles.state_dict()[name], tensor)
    close(left.weights, right.weights)
    close(left.log_evidence, right.log_evidence)
    assert torch.equal(left.alive, right.alive)
    assert left.particles.indices.tolist() == right.particles.indices.tolist()


PART = """
import sys
from tests.filters.test_merging import ol, started, train
pf = train(started("weighted", "adam", range(*map(int, sys.argv[2:]))), 0, 4)
ol.save(sys.argv[1], pf)
"""


def test_two_processes_are_one_process(tmp_path) -> None:
    """Their filters merge into the one of a single process, and go on as that one does."""
    parts = {tmp_path / "a.safetensors": (0, 2), tmp_path / "b.safetensors": (2, 5)}
    running = [
        subprocess.Popen([sys.executable, "-c", PART, str(path), *map(str, ends)])
        for path, ends in parts.items()
    ]
    assert [process.wait() for process in running] == [0, 0]
    merged = ol.merge_filters(
        [
            ol.load(path, into=started("weighted", "adam", range(*ends)))
            for path, ends in parts.items()
        ]
    )
    single = train(started("weighted", "adam", None), 0, 4)
    assert_same(merged, single)
    assert_same(train(merged, 4, 7), train(single, 4, 7))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_any_order_are_the_whole_also_with_a_dead_particle(kind, optimizer) -> None:
    filters = [started(kind, optimizer, indices) for indices in ([3, 0], [4, 1, 2], None)]
    for pf in filters:
        with torch.no_grad():
            dead = (pf.particles.indices == 4).nonzero()
            pf.particles.get_parameter("0.weight")[dead] = float("nan")
        train(pf, 0, 3)
        for parameter in pf.particles.parameters():
            parameter.data.nan_to_num_(0.0)
    *parts, whole = filters
    assert whole.alive.tolist() == [True] * 4 + [False]
    assert_same(ol.merge_filters(parts), whole)


def test_what_is_no_part_of_one_training_is_refused() -> None:
    def part(indices, **options) -> ol.GradientFilter:
        return started("weighted", "sgd", indices, **options)

    other = ol.Ensemble(mlp, 5, seed=3, indices=[2]).double()
    of_others = ol.WeightedParticleFilter(other, OPTIMIZERS["sgd"](other.parameters()))
    wrong = {
        "at least one filter": [],
        "share particles": [part([0, 1]), part([1, 2])],
        "seeds 3 and 4": [part([0]), part([1], seed=4)],
        "0 and 2 steps": [part([0]), train(part([1]), 0, 2)],
        "different kinds": [part([0]), started("averaging", "sgd", [1])],
        "other networks": [part([0]), of_others],
    }
    for message, filters in wrong.items():
        with pytest.raises(ValueError, match=message):
            ol.merge_filters(filters)


@pytest.mark.parametrize("indices", [[], [0, 0], [5], [-1]])
def test_indices_are_different_numbers_below_n(indices) -> None:
    with pytest.raises(ValueError, match="different numbers below 5"):
        ol.Ensemble(mlp, 5, indices=indices)
