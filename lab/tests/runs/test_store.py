"""A run directory: one process per cell, no links followed, whole files."""

import errno

import pytest
from lab.tests.toys import compute, tiny_grid

from orderless_lab.runs import Store
from orderless_lab.runs import store as storage
from orderless_lab.runs.launch import Listener
from orderless_lab.runs.store import as_json
from orderless_lab.text import file_name


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "run")
    made.prepare()
    return made


def test_a_cell_that_another_process_computes_is_left_to_it(store):
    said = []
    name = tiny_grid().cells()[0].name
    with Store(store.directory).claim(name) as ours:
        assert ours
        listener = Listener(say=said.append)
        assert compute(store, permutations=2, listener=listener) == 1  # the other order
    assert "another run" in said[0] and "order 0" in said[0]
    assert compute(store, permutations=2) == 1
    assert list((store.directory / "locks").iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_no_other_run(code, store, monkeypatch):
    def no_locks(*_):
        raise OSError(code, "No locks here")

    monkeypatch.setattr(storage.fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="cannot be locked .No locks here.: let one run"):
        assert compute(store) == 1


def test_a_system_without_locks_computes_as_well(store, monkeypatch):
    monkeypatch.setattr(storage, "fcntl", None)
    assert compute(store) == 1


def test_links_in_a_run_directory_are_never_followed(store, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    name = tiny_grid().cells()[0].name
    (store.directory / "locks" / name).symlink_to(precious)
    with pytest.raises(storage.StoreError, match="cannot write to"):
        compute(store)
    assert precious.read_text() == "keep me"


def test_halves_of_files_that_a_killed_process_left_go_with_its_cell(store):
    for folder in ("cells", "checkpoints"):
        for name in ("x", "x1"):
            (store.directory / folder / f".{name}.st.123.part").write_bytes(b"half")
    with store.claim("x"):
        left = [path.name for path in store.directory.glob("*/.*.part")]
    assert left == [".x1.st.123.part"] * 2


def test_a_number_that_is_not_finite_is_null():
    assert as_json({"a": (float("nan"), 1.5)}) == {"a": [None, 1.5]}
    with pytest.raises(TypeError, match="set has no place in JSON"):
        as_json({1})


def test_no_two_names_have_one_file_and_every_system_accepts_it():
    names = ["a/b", "a%2Fb", "a:b", "con", "CON.x", "end.", "end ", "new\nline", "x", "c*n", "cons"]
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names)
    for file in files:
        assert not set(file) & set('<>:"/\\|?*\n') and file[-1] not in ". "
        assert file.split(".")[0].lower() not in ("con", "nul")
    assert file_name("cons") == "cons"
