"""A good file of every kind that is read, and its reader."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas
import torch
from lab.tests.report.synthetic_cells import make_cell
from PIL import Image

import orderless as ol
from orderless import io as storage
from orderless.distributed.head import Head, Recipe, look_through
from orderless.distributed.parts import Parts
from orderless.exact.digests import digests
from orderless.files import find_files, read_images
from orderless_lab.experiments import Store
from orderless_lab.experiments.store import read_cell
from orderless_lab.report import ReportError
from orderless_lab.report.density import read_snapshots
from orderless_lab.rl.experts import Expert, load_expert, save_expert
from orderless_lab.rl.networks import Compact
from orderless_lab.rl.transitions import read_transitions
from orderless_lab.scenarios import DataError
from orderless_lab.scenarios.download import extract
from orderless_lab.scenarios.formats import read_idx
from orderless_lab.storage.typed import as_json


def make_filter() -> ol.ParticleFilter:
    particles = ol.Ensemble(lambda: torch.nn.Linear(3, 2), 2, seed=0)
    return ol.WeightedParticleFilter(particles, torch.optim.Adam(particles.parameters(), lr=0.1))


def written_by(write) -> bytes:
    """The bytes that `write(folder)` puts on the disk."""
    with TemporaryDirectory() as folder:
        write(Path(folder))
        (path,) = (path for path in Path(folder).rglob("*") if path.is_file())
        return path.read_bytes()


def saved(state) -> bytes:
    return written_by(lambda folder: storage.save(folder / "x", state))


def cell_file(record) -> bytes:
    def write(folder):
        (store := Store(folder)).prepare("cells")
        store.write_cell("x", record)

    return written_by(write)


def idx_file() -> bytes:
    return bytes([0, 0, 8, 3]) + struct.pack(">3I", 4, 5, 5) + bytes(range(100))


def read_images_file(path):
    return read_idx(path, hashlib.md5(idx_file()).hexdigest(), "mnist")


def cifar_pickle(protocol=2) -> bytes:
    data = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1, 2], b"names": ["a", "b"]}
    return pickle.dumps(data, protocol)


def archive(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members or (("folder/a", b"one"), ("folder/b", b"two" * 400)):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def snapshots_file() -> bytes:
    tensors = {
        "positions": torch.zeros(3, 4, 8),
        "log_weights": torch.zeros(3, 4, dtype=torch.float64),
        "step": torch.arange(3),
    }
    return saved(tensors)


FACTS = {
    "format": 2,
    "transitions": 2,
    "game": "starpilot",
    "episodes": 1,
    "mean_return": 0.5,
    "sha256": hashlib.sha256(bytes(2 * 3 * 64 * 64 + 2)).hexdigest(),
}


def npy_file(*shape: int) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(shape, np.uint8))
    return buffer.getvalue()


TRANSITIONS = {
    "observations.npy": npy_file(2, 3, 64, 64),
    "actions.npy": npy_file(2),
    "facts.json": json.dumps(FACTS).encode(),
}


def write_transitions(folder: Path, facts=FACTS) -> None:
    for name, content in TRANSITIONS.items():
        (folder / name).write_bytes(content)
    (folder / "facts.json").write_text(json.dumps(facts))


def read_transitions_around(path: Path):
    """The folder of which `path` is a part; the other parts are good."""
    for name, content in TRANSITIONS.items():
        if name != path.name:
            (path.parent / name).write_bytes(content)
    read_transitions(path.parent)


WORTH = {where: {"expert": {"mean": 0.5}} for where in ("training", "held_out")}
EXPERT = {"game": "starpilot", "network": "compact", "returns": WORTH}


def expert_file() -> bytes:
    expert = Expert(Compact(), EXPERT)
    return written_by(lambda folder: save_expert(folder / "x", expert))


def load_from_checkpoint(path: Path):
    store = Store(path.parent)
    (store.directory / "checkpoints").mkdir(exist_ok=True)
    path.replace(store._checkpoints("x")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert isinstance(store.load_checkpoint("x", lambda state: ()), (dict, type(None)))


def extract_here(path: Path):
    outside = set(path.parent.rglob("*"))
    wanted = {"folder/a": "f97c5d29941bfb1b2fdab0874906ab82"}
    try:
        extract(path, path.parent / "inside", wanted)
    finally:
        inside = path.parent / "inside"
        new = set(path.parent.rglob("*")) - outside - {inside}
        assert all(p.is_relative_to(inside) and not p.is_symlink() for p in new)


def png_file() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(buffer, "png")
    return buffer.getvalue()


def parquet_file() -> bytes:
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.5], "b": [4, 5, 6], "label": ["x", "y", "x"]})
    return written_by(lambda folder: frame.to_parquet(folder / "x"))


RECIPE = Recipe("relu", 8, 1, 0, ["x", "y"], label="label", columns=["a"], mean=[0.0], scale=[1.0])

SAMPLES = torch.arange(6.0).reshape(6, 1) / 2, torch.arange(6) % 2


def head_state() -> dict[str, object]:
    rb = RECIPE.make_filter()
    rb.update(*SAMPLES)
    return {"recipe": as_json(RECIPE), "filter": rb.state_dict()}


def part_file() -> bytes:
    return saved(head_state()["filter"]["sums"])


def read_part(path: Path) -> None:
    """A part that cannot be used is computed again, and the sums are right in any case."""
    parts = Parts(RECIPE.make_filter, RECIPE.read, path.parent, RECIPE.make_filter().fingerprint)
    found, expected = (parts.sums(*SAMPLES, place).moments.low for place in (path, None))
    assert torch.equal(found, expected)


# name of the file -> (a good one, its reader, the error that stands for a bad one, cases)
READERS = {
    "cell.json": (cell_file(make_cell("wpf", 0, 0)), read_cell, ValueError, 200),
    "state.st": (saved(make_filter()), ol.load, ValueError, 200),
    "filter.st": (
        saved(make_filter()),
        lambda path: ol.load(path, into=make_filter()),
        ValueError,
        100,
    ),
    "checkpoint.st": (saved(make_filter()), load_from_checkpoint, (), 100),
    "snapshots.st": (snapshots_file(), read_snapshots, ReportError, 100),
    "images-idx3-ubyte": (idx_file(), read_images_file, DataError, 150),
    "images-idx3-ubyte.gz": (gzip.compress(idx_file()), read_images_file, DataError, 150),
    "archive.tar.gz": (archive(), extract_here, DataError, 150),
    "archive.tar": (gzip.decompress(archive()), extract_here, DataError, 150),
    **{
        name: (content, read_transitions_around, ValueError, 60)
        for name, content in TRANSITIONS.items()
    },
    "head.safetensors": (saved(head_state()), Head.load, ValueError, 60),
    "part.safetensors": (part_file(), read_part, (), 60),
    "certificate.st": (
        saved(head_state()),
        lambda path: digests(ol.load(path)),
        ValueError,
        40,
    ),
    "photo.png": (png_file(), lambda path: read_images([path], 8), DataError, 150),
    "table.csv": (
        b"a,b,label\n1.5,2,x\n3,4,y\n-5e3,6,x\n",
        lambda path: look_through(find_files(path), "label", []),
        DataError,
        150,
    ),
    "table.parquet": (
        parquet_file(),
        lambda path: look_through(find_files(path), "label", []),
        DataError,
        150,
    ),
    "expert.safetensors": (
        expert_file(),
        lambda path: load_expert("starpilot", path),
        ValueError,
        30,
    ),
}
