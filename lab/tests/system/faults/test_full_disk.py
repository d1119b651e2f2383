"""No room for a file, at any point of a run: a sentence, no loss, and the same command goes on."""

import resource
import shutil
import subprocess

import pytest
from lab.tests.system.faults.bench import (
    METHODS,
    assert_nothing_is_torn,
    everything,
    randomness,
    undisturbed,
)
from lab.tests.system.faults.zygote import FULL, Zygote
from lab.tests.toys import compute

from orderless_lab.runs import Store, StoreError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture
def disk(tmp_path):
    """A file system of 48 KiB, and how to give it another size."""

    def mount(kilobytes, *again):
        options = ",".join([*again, f"size={kilobytes}k"])
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True)

    if shutil.which("mount") is None or (failed := mount(48)).returncode:
        reason = failed.stderr if shutil.which("mount") else "there is no mount"
        pytest.skip(
            f"a small file system cannot be mounted here ({reason}); file sizes are limited below"
        )
    yield tmp_path, lambda kilobytes: mount(kilobytes, "remount")
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_is_full_again_and_again(disk, expected, record_property):
    folder, grow = disk
    chance, size, done = randomness("disk"), 48, {}
    while True:
        try:
            compute(Store(folder / "run"), *METHODS, checkpoint_every=0.0)
            break
        except StoreError as error:
            assert "No space left on device; finished cells are safe" in str(error)
            record_property("fault: full disk", 1)
        assert_nothing_is_torn(folder / "run")
        finished = Store(folder / "run").finished()
        assert done.items() <= finished.items()
        done, size = finished, size + chance.randint(4, 60)
        assert grow(size).returncode == 0
    assert size > 48
    assert everything(folder / "run") == expected


def test_files_that_may_not_grow_beyond_a_limit(tmp_path, expected, record_property):
    """A quota, seen from inside: writing fails in the middle of a file."""
    chance, zygote, folder = randomness("limit"), Zygote(METHODS), tmp_path / "run"
    for _ in range(6):
        assert zygote.run(folder, limit=chance.randint(1, 20_000)) == FULL
        record_property("fault: full disk", 1)
        assert_nothing_is_torn(folder)
    assert zygote.run(folder, limit=resource.RLIM_INFINITY) == 0
    assert everything(folder) == expected
    zygote.close()
