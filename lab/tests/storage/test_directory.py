"""A run directory: one writer, and no links followed."""

import errno
import fcntl

import pytest

from orderless_lab.experiments import Store, StoreError
from orderless_lab.storage.directory import LOCK


def test_links_in_a_run_directory_are_never_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    store = Store(tmp_path / "run")
    store.prepare()
    for name in (".writable", LOCK):
        (store.directory / name).symlink_to(precious)
    store.prepare()
    with pytest.raises(StoreError, match="is a link to another file: remove it"), store.lock():
        pass
    assert precious.read_text() == "keep me"


def test_only_a_second_run_is_called_another_run(tmp_path, monkeypatch):
    store, second = Store(tmp_path), Store(tmp_path)
    store.prepare()
    with store.lock(), pytest.raises(StoreError, match="another run is writing"), second.lock():
        pass

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="cannot be locked"), store.lock() as mark:
        assert mark == store.mark()
