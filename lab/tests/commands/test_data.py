"""`orderless data`: what is where, and files that are damaged."""

import hashlib

import numpy as np
import pytest
from lab.tests.commands.toys import SMALL
from tests.cli.commands import refused, run


def test_data_list_says_where_everything_is(no_data):
    lines = run("data", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["mnist", "cifar100", "intents", "mnist-5k"]
    assert "not found; `orderless data fetch mnist` gets it" in lines[0]


def test_data_check_and_fetch_know_the_names(no_data):
    assert "'bad'" in refused("data", "fetch", "bad")
    assert "'bad'" in refused("data", "check", "bad")
    run("data", "check", "mnist-5k")
    assert "mnist: not found" in run("data", "check").stdout
    assert "orderless data fetch mnist" in refused("data", "check", "mnist")


@pytest.mark.slow
def test_one_flipped_byte_in_a_data_file_is_refused(no_data, monkeypatch):
    """Four small files in MNIST's format, with checksums that fit until a byte is flipped."""
    raw, sums = no_data / "MNIST" / "raw", {}
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for name, shape in (("images-idx3-ubyte", (40, 28, 28)), ("labels-idx1-ubyte", (40,))):
            array = np.arange(np.prod(shape)).reshape(shape) % 10
            data = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            data += array.astype(np.uint8).tobytes()
            (raw / f"{part}-{name}").write_bytes(data)
            sums[f"{part}-{name}"] = ("", hashlib.md5(data).hexdigest())
    monkeypatch.setattr("orderless_lab.datasets.load.MNIST_MD5S", sums)
    full = ["--set", "source=full", "--data-dir", no_data, "--methods", "ewc"]
    run("run", "splitmnist", *SMALL, *full, "--out", no_data / "a")

    file = raw / "t10k-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes()[:-1] + b"\x08")
    said = refused("run", "splitmnist", *SMALL, *full, "--out", no_data / "b")
    assert str(file) in said and "data fetch mnist" in said
    assert not (no_data / "b").exists()
    checked = run("data", "check", "mnist", "--data-dir", no_data, code=2)
    assert f"BAD {file}" in checked.stdout
