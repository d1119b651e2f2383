"""An exact head over shards on processes: the bits of one machine, however it comes about."""

import warnings

import pytest
from tests.distributed.shards import (
    X,
    Y,
    always_die,
    cut,
    empty,
    read,
    read_and_die,
    same,
    whole,
)

from orderless.distributed import fit


@pytest.mark.parametrize("size", [7, 300, 5000])
def test_any_cut_gives_the_bits_of_one_update(size):
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of clipped samples, where a shard has few others
        assert same(fit(empty(), cut(size), read, workers=1, progress=told.append), whole())
    assert told[-1] == 1000 and told == sorted(told)


def test_a_shard_may_be_the_samples_or_come_in_pieces_and_arrays_and_empty():
    def pieces(rows):
        yield X[:0].numpy(), Y[:0].numpy()
        for start in range(*rows, 90):
            some = slice(start, min(start + 90, rows[1]))
            yield X[some].numpy(), Y[some].numpy()

    assert same(fit(empty(), cut(400), pieces, workers=1), whole())
    assert same(fit(empty(), map(read, cut(400)), workers=1), whole())
    assert fit(empty(), []).samples == 0


def test_more_data_are_added_to_those_of_the_head():
    first = fit(empty(), cut(500)[:1], read, workers=1)
    assert same(fit(first, cut(500)[1:], read, workers=1), whole())
    assert first.samples == 500


def test_what_cannot_be_fitted_is_a_sentence():
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        fit(empty(), cut(500), read, workers=0)
    with pytest.raises(TypeError, match="cannot unpack non-iterable int"):
        fit(empty(), [0], lambda shard: [3], workers=1)


@pytest.mark.slow
def test_a_killed_process_changes_nothing(tmp_path, record_property):
    shards = [(tmp_path, rows) for rows in cut(50)]
    assert same(fit(empty(), shards, read_and_die, workers=2), whole())
    assert (tmp_path / "killed").exists()  # or the test has tested nothing
    record_property("fault: killed process of a fit", 1)


@pytest.mark.slow
def test_a_shard_that_kills_every_process_ends_the_fit():
    with pytest.raises(MemoryError, match="worker processes were killed 3 times"):
        fit(empty(), cut(500), always_die, workers=1 + 1)
