"""`orderless data`: what is where, and files that are damaged."""

import pytest
from lab.tests.toys import SMALL
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
def test_one_flipped_byte_in_a_data_file_is_refused(tiny_mnist, tmp_path):
    full = ["--set", "source=full", "--data-dir", tiny_mnist.root, "--methods", "ewc"]
    run("run", "splitmnist", *SMALL, *full, "--out", tmp_path / "a")

    file = tiny_mnist.root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    said = refused("run", "splitmnist", *SMALL, *full, "--out", tmp_path / "b")
    assert str(file) in said and "data fetch mnist" in said
    assert not (tmp_path / "b").exists()
    checked = run("data", "check", "mnist", "--data-dir", tiny_mnist.root, code=2)
    assert f"BAD {file}" in checked.stdout
