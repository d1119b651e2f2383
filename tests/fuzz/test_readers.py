"""Every reader of a file, fed with damaged, hostile and senseless ones: a sentence or nothing."""

import base64
import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import tarfile
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas
import pytest
import torch
from docs.tools import results_page
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save as serialize
from tests.experiments.tiny import make_run, result_of, tiny_cell, tiny_grid
from tests.fuzz.cases import Watch, altered, anything, cases, edited
from tests.report.synthetic_cells import make_cell

import orderless as ol
from orderless.audit.runs import AuditWork, Place
from orderless.distributed.head import Head, Recipe, look_through
from orderless.distributed.parts import Parts
from orderless.experiments import Store, StoreError
from orderless.experiments.engine import unfinished
from orderless.experiments.store import read_cell
from orderless.filters.exact.certificate import compare
from orderless.report import ReportError, load_run, summarize
from orderless.report.density import load_frames, read_snapshots
from orderless.report.page import data as page
from orderless.report.page import page_data, render
from orderless.rl.experts import Expert, load_expert, save_expert
from orderless.rl.networks import Compact
from orderless.rl.transitions import read_transitions
from orderless.scenarios import DataError
from orderless.scenarios.download import extract
from orderless.scenarios.files import find_files, read_images
from orderless.scenarios.formats import read_idx, unpickle
from orderless.storage import Directory
from orderless.storage import saving as storage
from orderless.storage.typed import as_json

pytestmark = pytest.mark.slow


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


def head_state() -> dict[str, object]:
    rb = RECIPE.make_filter()
    rb.update(torch.arange(6.0).reshape(6, 1), torch.arange(6) % 2)
    return {"recipe": as_json(RECIPE), "filter": rb.state_dict()}


def part_file() -> bytes:
    return saved(head_state()["filter"]["statistics"])


def read_part(path: Path) -> None:
    """A part that cannot be used is computed again, and the sums are right in any case."""
    x, y = torch.arange(6.0).reshape(6, 1), torch.arange(6) % 2
    parts = Parts(RECIPE.make_filter, RECIPE.read, path.parent, RECIPE.make_filter().fingerprint)
    assert torch.equal(parts.sums(x, y, path).moments.low, parts.sums(x, y, None).moments.low)


def check_results(path: Path):
    assert results_page.main(["--check", "--directory", str(path.parent)]) in (0, 1, 2)


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
    "images-idx3-ubyte": (idx_file(), read_idx, DataError, 150),
    "images-idx3-ubyte.gz": (gzip.compress(idx_file()), read_idx, DataError, 150),
    "archive.tar.gz": (archive(), extract_here, DataError, 150),
    "archive.tar": (gzip.decompress(archive()), extract_here, DataError, 150),
    "results.json": (
        json.dumps({"benchmark": "splitmnist", "methods": {}, "claims": []}).encode(),
        check_results,
        (),
        100,
    ),
    **{
        name: (content, read_transitions_around, ValueError, 60)
        for name, content in TRANSITIONS.items()
    },
    "head.safetensors": (saved(head_state()), Head.load, ValueError, 60),
    "part.safetensors": (part_file(), read_part, (), 60),
    "certificate.st": (
        saved(head_state()),
        lambda path: compare(ol.load(path), head_state()),
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


@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_read_or_refused(name, tmp_path, record_property):
    whole, read, refusal, count = READERS[name]
    watch = Watch()

    @cases(count)
    @given(edited(whole))
    def every(content):
        folder = tmp_path / str(watch.cases)
        folder.mkdir()
        path = folder / name
        path.write_bytes(content)
        with watch.case():
            try:
                read(path)
            except refusal as error:
                assert len(str(error)) > 10

    with watch.all_cases(record_property, name):
        every()


def test_the_good_files_are_read(tmp_path):
    """Or the changed ones are refused for nothing."""
    for name, (whole, read, _, _) in READERS.items():
        path = tmp_path / name / name
        path.parent.mkdir()
        path.write_bytes(whole)
        read(path)


# ---------------------------------------------------------------------- checksums that fit


def test_a_senseless_state_with_the_right_checksum_is_refused(tmp_path, record_property):
    """What anybody can write who reads the source."""
    tags = st.sampled_from(["$tensor", "$dict", "$tuple", "$float", "$x", "x"])
    trees = st.recursive(
        anything,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(tags, inner, max_size=2)
        ),
        max_leaves=10,
    )
    watch, tensors = Watch(), {"x": torch.zeros(3)}
    path = tmp_path / "state.st"

    @cases(200)
    @given(trees, st.sampled_from([storage.FORMAT, 0, "2", None, [2]]))
    def every(tree, form):
        text = json.dumps(tree)
        about = {"format": form, "checksum": storage.checksum(text, tensors), "tree": text}
        path.write_bytes(serialize(tensors, {"orderless": json.dumps(about)}))
        with watch.case():
            try:
                ol.load(path, into=make_filter())
            except ValueError as error:
                assert str(path) in str(error)

    with watch.all_cases(record_property, "senseless states"):
        every()


def test_a_senseless_head_with_the_right_checksum_is_refused(tmp_path, record_property):
    watch, state, path = Watch(), head_state(), tmp_path / "head.st"

    @cases(120)
    @given(altered(state["recipe"]))
    def every(recipe):
        storage.save(path, {"recipe": recipe, "filter": state["filter"]})
        with watch.case(), suppress(ValueError):
            Head.load(path)

    with watch.all_cases(record_property, "senseless heads"):
        every()


@pytest.mark.parametrize("depth", [100, 100_000])
def test_what_is_nested_too_deep_is_refused(depth, tmp_path):
    text = "[" * depth + "]" * depth
    about = {"format": storage.FORMAT, "checksum": storage.checksum(text, {}), "tree": text}
    (tmp_path / "a").write_bytes(serialize({}, {"orderless": json.dumps(about)}))
    (tmp_path / "b").write_text('{"cell": ' + text + "}")
    for read in (
        lambda: ol.load(tmp_path / "a", into=make_filter()),
        lambda: read_cell(tmp_path / "b"),
    ):
        with pytest.raises(ValueError):
            read()


def test_a_senseless_checkpoint_with_the_right_checksum_is_refused(tmp_path, record_property):
    """Of the right cell, even; what else it holds is anything."""
    store, cell = Store(tmp_path), tiny_cell("wpf")
    written = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "save_checkpoint", lambda self, name, state: written.append(state))
        result_of(cell, tmp_path, checkpoint_every=0)
    good = written[6]
    watch = Watch()

    @cases(60)
    @given(altered({key: good[key] for key in ("progress", "learner")}))
    def every(changed):
        changed = changed if isinstance(changed, dict) else {"progress": changed}
        store.drop_checkpoints(cell.name)
        store.save_checkpoint(cell.name, {**good, **changed})
        with watch.case(), suppress(StoreError):
            make_run(cell, tmp_path)._resume()

    with watch.all_cases(record_property, "senseless checkpoints"):
        every()


def test_a_run_on_top_of_a_senseless_record_is_refused(tmp_path, record_property):
    cell, store, watch = tiny_cell("wpf"), Store(tmp_path), Watch()
    good = result_of(cell, tmp_path)

    @cases(100)
    @given(altered(good))
    def every(record):
        store.write_cell(cell.name, record)
        with watch.case(), suppress(StoreError):
            assert unfinished([cell], tiny_grid(("wpf",)), store) in ([], [cell])

    with watch.all_cases(record_property, "senseless finished cells"):
        every()


def test_a_senseless_expert_with_the_right_checksum_is_refused(tmp_path, record_property):
    path, watch = tmp_path / "expert.safetensors", Watch()
    parameters = {name: None for name in Compact().state_dict()}

    @cases(60)
    @given(altered({"kind": "expert", "facts": EXPERT, "parameters": parameters}))
    def every(content):
        ol.save(path, content)
        with watch.case(), pytest.raises(ValueError, match="expert"):
            load_expert("starpilot", path)

    with watch.all_cases(record_property, "senseless experts"):
        every()


def test_senseless_facts_of_transitions_are_refused(tmp_path, record_property):
    watch = Watch()

    @cases(60)
    @given(altered(FACTS))
    def every(facts):
        write_transitions(tmp_path, facts)
        with watch.case(), suppress(ValueError):
            found = read_transitions(tmp_path).facts
            assert isinstance(found["episodes"], int)
            assert isinstance(found["mean_return"], float | None)

    with watch.all_cases(record_property, "senseless transitions"):
        every()


def test_transitions_are_those_that_were_collected(tmp_path):
    write_transitions(tmp_path, {**FACTS, "sha256": "0" * 64})
    with pytest.raises(ValueError, match="its checksum is not that of its content"):
        read_transitions(tmp_path)


class Zeros:
    def learn(self, x, y, task=None):
        pass

    def predict(self, x):
        return torch.zeros(len(x), dtype=torch.int64)


def test_a_senseless_run_of_an_audit_is_refused(tmp_path, record_property):
    """Also one whose labels unpack to a thousand times their size."""
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    place, task = Place("mine", 0, (0,), 0), ol.Task(x, y, x, y, name="a")
    work = AuditWork({"mine": lambda seed: Zeros()}, {"mine": {"tasks": "a"}}, [task])
    store, watch = Directory(tmp_path), Watch()
    store.prepare()
    work.compute(place, store, lambda *_: None)
    good = store.finished()[place.name]
    packer = zlib.compressobj(1)
    bomb = b"".join([*(packer.compress(bytes(2**20)) for _ in range(2**10)), packer.flush()])

    def refused_or_read(record):
        with watch.case(), suppress(*storage.INVALID_STATE):  # what the engine sets aside
            run = work.read(record)
            assert run.answers.shape == (4,) and run.matrix.shape == (1, 1)

    @cases(100)
    @given(altered(good))
    def every(record):
        if isinstance(record, dict):  # the store refuses the rest
            refused_or_read(record)

    with watch.all_cases(record_property, "senseless audits"):
        every()
        refused_or_read({**good, "labels": base64.b64encode(bomb).decode()})


def whole_page(directory):
    try:
        run = load_run(directory)
    except StoreError as error:
        raise ReportError(str(error)) from error
    return render(page_data(run, summarize(run), *load_frames(directory)))


@pytest.mark.parametrize(("count", "drawn"), [(300, False), (15, True)])
def test_a_senseless_record_with_the_right_checksum_is_refused(
    tmp_path, record_property, monkeypatch, count, drawn
):
    """In the table and on the page; some of these also with all their charts, which take time."""
    if not drawn:
        monkeypatch.setattr(page, "_with_charts", lambda result, *_: (result, {}))
    good = [make_cell(method, order, 0) for method in ("wpf", "gd") for order in (0, 1)]
    cells = tmp_path / "cells"
    cells.mkdir()
    for number, record in enumerate(good):
        (cells / f"{number}.json").write_bytes(cell_file(record))
    watch = Watch()
    closing = whole_page(tmp_path).count("</script>")  # no name may add one

    @cases(count)
    @given(altered(good[0]))
    def every(record):
        (cells / "0.json").write_bytes(cell_file(record))
        with watch.case(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                text = whole_page(tmp_path)
            except ReportError:
                return
            assert text.count("</script>") == closing

    with watch.all_cases(record_property, "senseless records"):
        every()


def test_a_hostile_pickle_never_calls_anything(tmp_path, record_property, monkeypatch):
    """Programs of the pickle machine, with names from all over the standard library."""
    called = []
    for module, name in ((os, "system"), (os, "mkdir"), (os, "remove")):
        monkeypatch.setattr(module, name, lambda *a, called=called: called.append(a))
    names = st.sampled_from(
        [b"cos\nsystem\n", b"cposix\nmkdir\n", b"cbuiltins\neval\n", b"cbuiltins\ngetattr\n"]
        + [b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"cnumpy\nload\n"]
        + [b"cnumpy.core.multiarray\n_reconstruct\n", b"cbuiltins\nbytearray\n"]
    )
    pieces = st.sampled_from(
        [b"(", b")", b"t", b"R", b"b", b"}", b"]", b"a", b"s", b"u", b"0", b"2", b"q\x00", b"h\x00"]
        + [b"K\x07", b"N", b"\x88", b"U\x02u1", b"X\x02\x00\x00\x00u1", b"\x81", b"i", b"o"]
        + [b"\x93", b"\x85", b"\x86", b"\x87", b"I1\n"]
    )
    programs = st.lists(st.one_of(names, pieces), max_size=20)
    watch = Watch()

    @cases(400)
    @given(programs)
    def every(program):
        with watch.case():
            with suppress(pickle.UnpicklingError):
                unpickle(b"\x80\x02" + b"".join(program) + b".")
            assert called == []

    with watch.all_cases(record_property, "hostile pickles"):
        every()


def test_an_archive_never_leaves_its_folder(tmp_path, record_property):
    parts = st.sampled_from(["..", ".", "folder", "a", "", "b", "~", "\\", "x\n", "ä"])
    names = st.lists(parts, min_size=1, max_size=4).map("/".join)
    kinds = st.sampled_from(
        [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE]
        + [tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"?"]
    )
    members = st.lists(st.tuples(names, kinds, names), min_size=1, max_size=4)
    watch = Watch()

    @cases(250)
    @given(members)
    def every(wanted):
        folder = tmp_path / str(watch.cases)
        folder.mkdir()
        path = folder / "archive.tar"
        with tarfile.open(path, "w") as tar:
            for name, kind, link in [*wanted, ("folder/a", tarfile.REGTYPE, "")]:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind, link
                entry.size = 3 if kind == tarfile.REGTYPE else 0
                tar.addfile(entry, io.BytesIO(b"one"))
        with watch.case(), suppress(DataError):
            extract_here(path)

    with watch.all_cases(record_property, "hostile archives"):
        every()
