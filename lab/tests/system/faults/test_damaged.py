"""A bit flips in any file of a run, or a file loses its end: noticed, named, computed again."""

import shutil
import warnings

import pytest
from lab.tests.system.faults.bench import FAULTS, everything, randomness, undisturbed
from lab.tests.toys import compute, stop_after

from orderless import io as storage
from orderless_lab.runs import Store
from orderless_lab.runs.launch import Listener
from orderless_lab.runs.store import DamagedFile, read_cell

METHODS = ("wpf", "er", "ewc+wpf")  # the first has snapshots


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("runs") / "whole", METHODS)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that was stopped in its third cell: two cells, snapshots, and two checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "half"
    listener = Listener(tick=stop_after(2 * 13 + 8))
    with pytest.raises(KeyboardInterrupt):
        compute(Store(folder), *METHODS, checkpoint_every=0, listener=listener)
    return folder


def read(path):
    return read_cell(path) if path.suffix == ".json" else storage.load(path)


@pytest.mark.slow
def test_any_damage_to_any_file_is_made_good(half, expected, tmp_path, record_property):
    chance = randomness("damage")
    names = sorted(
        path.relative_to(half) for path in half.glob("*/*") if path.suffix in (".json", ".st")
    )
    assert len({name.parent for name in names}) == 3 and len(names) == 5
    for number in range(FAULTS):
        folder = tmp_path / str(number)
        shutil.copytree(half, folder)
        path = folder / names[number % len(names)]
        whole = path.read_bytes()
        place = chance.randrange(len(whole))
        if chance.random() < 0.8:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << chance.randrange(8)
        else:
            damaged = whole[:place]
        path.write_bytes(damaged)
        record_property("fault: damaged file", 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compute(Store(folder), *METHODS)
        said = [str(each.message) for each in caught if each.category is DamagedFile]
        # the last digit of a float, or 1E-5 for 1e-5, may stand for the same number
        harmless = (
            path.exists()
            and path.read_bytes() == damaged
            and read(path) == read(half / path.relative_to(folder))
        )
        if harmless:
            assert said == []
        else:
            assert len(said) == 1 and str(path) in said[0], (number, path.name, place)
            assert path.with_suffix(".damaged").read_bytes() == damaged
        assert everything(folder) == expected, (number, path.name, place)
