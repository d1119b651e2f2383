"""An exact filter over shards on processes: the bits of one machine, however it comes about."""

import warnings
from functools import partial

import pytest
import torch
from tests.distributed.shards import X, Y, cut, make_filter, read, read_and_die, same, whole

import orderless as ol
from orderless.distributed import fit
from orderless_lab.storage import StoreError


class Counting(ol.ExactHead):
    """Counts the samples that were not read from files."""

    absorbed = 0

    def update(self, x, y, *more, **options):
        Counting.absorbed += len(x)
        super().update(x, y, *more, **options)


def counted():
    maps = ol.Ensemble(lambda: ol.features.RandomReLU(6, 16), n=2, seed=3)
    return Counting(maps, feature_limit=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 300, 1000, 5000])
def test_any_cut_gives_the_bits_of_one_update(size):
    shards = cut(size) if size > 1 else [(i, i + 1) for i in range(20)] + [(20, 1000)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of clipped samples, where a shard has few others
        assert same(fit(make_filter, shards, read=read, workers=1), whole())


def test_a_shard_may_come_in_pieces_and_arrays_and_empty():
    def pieces(rows):
        yield X[:0].numpy(), Y[:0].numpy()
        for start in range(*rows, 90):
            some = slice(start, min(start + 90, rows[1]))
            yield X[some].numpy(), Y[some].numpy()

    assert same(fit(make_filter, cut(400), read=pieces, workers=1), whole())
    assert fit(make_filter, [], read=pieces).samples == 0


def test_a_stopped_fit_goes_on_and_more_data_costs_only_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(Counting, "absorbed", 0)

    def failing(rows):
        if rows[0] >= 600:
            raise RuntimeError("the disk is gone")
        return read(rows)

    with pytest.raises(RuntimeError, match="the disk is gone"):
        fit(counted, cut(100), read=failing, directory=tmp_path, workers=1)
    assert Counting.absorbed == 600
    told = []
    options = {"directory": tmp_path, "workers": 1, "progress": lambda *said: told.append(said)}
    result = fit(counted, cut(100), read=read, **options)
    assert Counting.absorbed == 1000 and same(result, whole())
    assert told[-1] == (10, 10, "1,000 samples")
    twice = fit(counted, cut(100) * 2, read=read, **options)  # equal pieces count each
    assert Counting.absorbed == 1000 and twice.samples == 2000 and same(twice, whole() + whole())


def test_a_part_that_keeps_other_samples_is_not_taken(tmp_path):
    for calibration in (16, 4, 0):
        make = partial(make_filter, calibration=calibration)
        expected = make()
        expected.update(X, Y)
        assert same(fit(make, cut(500), read=read, directory=tmp_path, workers=1), expected)
    with pytest.raises(ValueError, match="labels must lie between 0 and 1"):
        make = partial(make_filter, classes=2)
        fit(make, cut(500), read=read, directory=tmp_path, workers=1)


def test_a_part_of_other_maps_or_damaged_is_not_taken(tmp_path, monkeypatch):
    fit(partial(make_filter, bits=12), cut(500), read=read, directory=tmp_path, workers=1)
    options = {"read": read, "directory": tmp_path, "workers": 1}
    assert same(fit(make_filter, cut(500), **options), whole())
    files = sorted(tmp_path.glob("parts/*.safetensors"))
    assert len(files) == 4
    for file in files:
        data = bytearray(file.read_bytes())
        data[-9] ^= 1
        file.write_bytes(data)
    assert same(fit(make_filter, cut(500), **options), whole())


def test_one_fit_at_a_time(tmp_path):
    def nested(rows):
        fit(make_filter, [rows], read=read, directory=tmp_path)

    with pytest.raises(StoreError, match="another run is writing to"):
        fit(make_filter, cut(500), read=nested, directory=tmp_path, workers=1)


def test_more_samples_than_are_summed_exactly_are_refused(monkeypatch):
    monkeypatch.setattr("orderless.exact.sums.Units.most", 999.0)
    with pytest.raises(ValueError, match="1000 samples cannot be summed exactly with bits=16"):
        fit(make_filter, cut(500), read=read, workers=1)


def test_what_cannot_be_fitted_is_a_sentence():
    with pytest.raises(TypeError, match="a list of shards with a function read=, got list"):
        fit(make_filter, cut(500))
    with pytest.raises(TypeError, match="an exact head without data, got Exact"):
        fit(whole, cut(500), read=read)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        fit(make_filter, cut(500), read=read, workers=0)
    with pytest.raises(TypeError, match="define them in a module, or use workers=1"):
        fit(lambda: make_filter(), cut(500), read=read, workers=2)
    for wrong in (None, X, (X, Y, Y), [X]):
        with pytest.raises(TypeError, match="read must give a pair"):
            fit(make_filter, [0], read=lambda shard, given=wrong: given, workers=1)
    seeds = iter(range(9))

    def other_maps():
        maps = ol.Ensemble(lambda: ol.features.RandomReLU(6, 16), n=1, seed=next(seeds))
        return ol.ExactHead(maps)

    with pytest.raises(ValueError, match="make_filter must make the same feature maps every time"):
        fit(other_maps, cut(500), read=read, workers=1)


def test_maps_whose_bits_depend_on_threads_are_refused_with_several(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(ValueError, match=r"call torch.set_num_threads\(1\) before"):
        fit(lambda: ol.ExactHead(torch.nn.Linear(6, 4)), cut(500), read=read)


@pytest.mark.slow
def test_processes_give_the_bits_of_one(warm_workers):
    assert same(fit(make_filter, cut(70), read=read, workers=2), whole())


@pytest.mark.slow
def test_a_killed_process_is_a_sentence_and_the_next_fit_goes_on(tmp_path, warm_workers):
    shards = [(tmp_path, rows) for rows in cut(50)]
    options = {"read": read_and_die, "directory": tmp_path / "work", "workers": 2}
    with pytest.raises(StoreError, match="a worker process was killed"):
        fit(make_filter, shards, **options)
    assert len(list(tmp_path.glob("work/parts/*"))) >= 3
    assert same(fit(make_filter, shards, **options), whole())
