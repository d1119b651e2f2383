"""Every reader of a file, fed with damaged, hostile and senseless ones: a sentence or nothing."""

import io
import json
import os
import tarfile
import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from hypothesis import strategies as st
from lab.tests.experiments.tiny import make_run, result_of, tiny_cell, tiny_grid
from lab.tests.report.synthetic_cells import make_cell
from safetensors.torch import save as serialize
from tests.fuzz.cases import altered, anything, edited, fuzz
from tests.fuzz.files import (
    EXPERT,
    FACTS,
    READERS,
    cell_file,
    extract_here,
    head_state,
    make_filter,
    write_transitions,
)

import orderless as ol
from orderless import io as storage
from orderless.distributed.head import Head
from orderless_lab.experiments import Store, StoreError
from orderless_lab.experiments.engine import unfinished
from orderless_lab.experiments.store import read_cell
from orderless_lab.report import ReportError, load_run, summarize
from orderless_lab.report.density import load_frames
from orderless_lab.report.page import data as page
from orderless_lab.report.page import page_data, render
from orderless_lab.rl.experts import load_expert
from orderless_lab.rl.networks import Compact
from orderless_lab.rl.transitions import read_transitions
from orderless_lab.scenarios import DataError
from orderless_lab.scenarios.formats import unpickle

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_read_or_refused(name, tmp_path, record_property):
    whole, read, refusal, count = READERS[name]

    def check(content):
        path = Path(mkdtemp(dir=tmp_path), name)
        path.write_bytes(content)
        try:
            read(path)
        except refusal as error:
            assert len(str(error)) > 10

    fuzz(record_property, name, count, check, edited(whole))


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
    path, tensors = tmp_path / "state.st", {"x": torch.zeros(3)}

    def check(tree, form):
        text = json.dumps(tree)
        about = {"format": form, "checksum": storage.checksum(text, tensors), "tree": text}
        path.write_bytes(serialize(tensors, {"orderless": json.dumps(about)}))
        try:
            ol.load(path, into=make_filter())
        except ValueError as error:
            assert str(path) in str(error)

    fuzz(
        record_property,
        "senseless states",
        200,
        check,
        trees,
        st.sampled_from([storage.FORMAT, 0, "2", None, [2]]),
    )


def test_a_senseless_head_with_the_right_checksum_is_refused(tmp_path, record_property):
    state, path = head_state(), tmp_path / "head.st"

    def check(recipe):
        storage.save(path, {"recipe": recipe, "filter": state["filter"]})
        with suppress(ValueError):
            Head.load(path)

    fuzz(record_property, "senseless heads", 120, check, altered(state["recipe"]))


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

    def check(changed):
        changed = changed if isinstance(changed, dict) else {"progress": changed}
        store.drop_checkpoints(cell.name)
        store.save_checkpoint(cell.name, {**good, **changed})
        with suppress(StoreError):
            make_run(cell, tmp_path)._resume()

    fuzz(
        record_property,
        "senseless checkpoints",
        60,
        check,
        altered({key: good[key] for key in ("progress", "learner")}),
    )


def test_a_run_on_top_of_a_senseless_record_is_refused(tmp_path, record_property):
    cell, store = tiny_cell("wpf"), Store(tmp_path)
    good = result_of(cell, tmp_path)

    def check(record):
        store.write_cell(cell.name, record)
        with suppress(StoreError):
            assert unfinished([cell], tiny_grid(("wpf",)), store) in ([], [cell])

    fuzz(record_property, "senseless finished cells", 100, check, altered(good))


def test_a_senseless_expert_with_the_right_checksum_is_refused(tmp_path, record_property):
    path = tmp_path / "expert.safetensors"
    parameters = {name: None for name in Compact().state_dict()}

    def check(content):
        ol.save(path, content)
        with pytest.raises(ValueError, match="expert"):
            load_expert("starpilot", path)

    fuzz(
        record_property,
        "senseless experts",
        60,
        check,
        altered({"kind": "expert", "facts": EXPERT, "parameters": parameters}),
    )


def test_senseless_facts_of_transitions_are_refused(tmp_path, record_property):

    def check(facts):
        write_transitions(tmp_path, facts)
        with suppress(ValueError):
            found = read_transitions(tmp_path).facts
            assert isinstance(found["episodes"], int)
            assert isinstance(found["mean_return"], float | None)

    fuzz(record_property, "senseless transitions", 60, check, altered(FACTS))


def test_transitions_are_those_that_were_collected(tmp_path):
    write_transitions(tmp_path, {**FACTS, "sha256": "0" * 64})
    with pytest.raises(ValueError, match="its checksum is not that of its content"):
        read_transitions(tmp_path)


class Zeros:
    def __init__(self, seed):
        pass

    def learn(self, x, y, task=None):
        pass

    def predict(self, x):
        return torch.zeros(len(x), dtype=torch.int64)


def test_a_changed_file_of_an_audit_gives_the_same_audit_or_is_refused(tmp_path, record_property):
    x = torch.zeros(4, 2)
    tasks = [ol.Task(x, y, x, y) for y in torch.tensor([[0, 1, 0, 1], [1, 1, 1, 0]])]
    path = tmp_path / "runs.jsonl"
    options = {"orders": 2, "seeds": 2, "out": tmp_path}
    bits = ol.order_sensitivity(Zeros, tasks, **options).learner.bits

    def check(content):
        path.write_bytes(content)
        with suppress(ValueError):
            assert ol.order_sensitivity(Zeros, tasks, **options).learner.bits == bits

    fuzz(record_property, "files of an audit", 100, check, edited(path.read_bytes()))


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
    closing = whole_page(tmp_path).count("</script>")  # no name may add one

    def check(record):
        (cells / "0.json").write_bytes(cell_file(record))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                text = whole_page(tmp_path)
            except ReportError:
                return
            assert text.count("</script>") == closing

    fuzz(record_property, "senseless records", count, check, altered(good[0]))


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

    def check(program):
        with suppress(Exception):  # whatever a broken program fails by, it calls nothing
            unpickle(b"\x80\x02" + b"".join(program) + b".")
        assert called == []

    fuzz(record_property, "hostile pickles", 400, check, programs)


def test_an_archive_never_leaves_its_folder(tmp_path, record_property):
    parts = st.sampled_from(["..", ".", "folder", "a", "", "b", "~", "\\", "x\n", "ä"])
    names = st.lists(parts, min_size=1, max_size=4).map("/".join)
    kinds = st.sampled_from(
        [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE]
        + [tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"?"]
    )
    members = st.lists(st.tuples(names, kinds, names), min_size=1, max_size=4)

    def check(wanted):
        path = Path(mkdtemp(dir=tmp_path), "archive.tar")
        with tarfile.open(path, "w") as tar:
            for name, kind, link in [*wanted, ("folder/a", tarfile.REGTYPE, "")]:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind, link
                entry.size = 3 if kind == tarfile.REGTYPE else 0
                tar.addfile(entry, io.BytesIO(b"one"))
        with suppress(DataError):
            extract_here(path)

    fuzz(record_property, "hostile archives", 250, check, members)
