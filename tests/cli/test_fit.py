"""`orderless fit`, `predict`, `merge` and `forget` on tables and folders of images."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.cli.commands import fit, predictions, priced, refused, run, table, written

import orderless as ol

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def tables(tmp_path):
    frame = table(600)
    written(frame[:250], tmp_path / "tables" / "first.csv")
    written(frame[250:], tmp_path / "tables" / "second.csv")
    return tmp_path / "tables"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Bright below or above, 24 of each, of several kinds."""
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for name, rows in (("above", slice(0, 20)), ("below", slice(20, 40))):
        (root / name).mkdir()
        for number in range(24):
            pixels = generator.integers(0, 120, (40, 40), dtype=np.uint8)
            pixels[rows] += 120
            kind = "png" if number % 2 else "jpg"
            Image.fromarray(pixels).save(root / name / f"{number}.{kind}")
    return root


# ------------------------------------------------------------------ what they do


def test_a_table_is_learned_and_predicted(tables, tmp_path):
    head = tmp_path / "head.safetensors"
    said = fit(tables, head)
    assert "600 samples" in said and "columns (4): a, b, c, d" in said
    assert "classes (2): other, same" in said
    left_out = float(said.splitlines()[-1].split("%")[0])
    new = written(table(500, seed=1), tmp_path / "new.csv")
    said, rows = predictions(head, new, tmp_path / "p.csv", "--probabilities")
    truth = table(500, seed=1)["kind"]
    right = sum(row["prediction"] == kind for row, kind in zip(rows, truth, strict=True))
    assert right > 450 and f"{right} of 500" in said
    assert abs(left_out - right / 5) < 4.0  # what was left out is like what is new
    assert rows[0]["sample"] == f"{new}:2"
    assert all(abs(float(r["same"]) + float(r["other"]) - 1) < 1e-4 for r in rows)
    unlabelled = written(table(9, seed=1).drop(columns="kind"), tmp_path / "unlabelled.csv")
    said, rows = predictions(head, unlabelled, tmp_path / "new" / "folder" / "p.csv")
    assert len(rows) == 9 and "right" not in said


def test_rows_formats_and_workers_in_any_order_give_the_same_file(tables, tmp_path, monkeypatch):
    fit(tables, tmp_path / "a.st")
    frame = table(600).sample(frac=1, random_state=1)
    for number in range(20):
        written(frame[30 * number : 30 * number + 30], tmp_path / "other" / f"{number}.parquet")
    monkeypatch.setattr("orderless.cli.fit.FEW_BYTES", 1)
    fit(tmp_path / "other", tmp_path / "b.st", "--workers", 2)
    assert (tmp_path / "a.st").read_bytes() == (tmp_path / "b.st").read_bytes()


def test_heads_of_two_sites_are_merged_and_samples_are_forgotten(tables, tmp_path):
    a, both, first, second, after = (tmp_path / f"{name}.st" for name in "abfsd")
    fit(tables, a)
    run("fit", "--data", tables / "first.csv", "--like", a, "--out", first)
    run("fit", "--data", tables / "second.csv", "--like", a, "--out", second)
    assert "600 samples" in run("merge", first, second, "--out", both).output
    assert both.read_bytes() == a.read_bytes()
    run("forget", both, "--data", tables / "second.csv", "--out", after)
    assert after.read_bytes() == first.read_bytes()
    fit(tables / "first.csv", second)  # with scales of its own
    said = refused("merge", a, second, "--out", tmp_path / "x.st")
    assert f"{second} cannot be added to {a}" in said and "mean" in said and "--like" in said


def test_a_head_that_began_small_and_keeps_every_sample_says_so(tables, tmp_path, monkeypatch):
    monkeypatch.setattr("orderless.heads.survey.FEW", 300)
    small, large, both = (tmp_path / f"{name}.st" for name in "slb")
    assert "kept" not in fit(tables / "first.csv", small)
    words = ["--like", small, "--out", large]
    said = run("fit", "--data", tables / "second.csv", *words).output
    assert "all samples are kept, as in the head that it is like" in said
    assert "all samples are kept" in run("merge", small, large, "--out", both).output
    assert "kept" not in fit(tables, large)
    assert large.stat().st_size < both.stat().st_size


def test_a_head_that_is_given_twice_is_not_merged(tables, tmp_path):
    a, b, copy, out = (tmp_path / f"{name}.st" for name in "abco")
    fit(tables / "first.csv", a)
    run("fit", "--data", tables / "second.csv", "--like", a, "--out", b)
    shutil.copy(a, copy)
    for twice in (a, copy):
        said = refused("merge", a, b, twice, "--out", out)
        assert f"{twice} holds the same data as {a}, which would count twice" in said
    assert not out.exists()


def test_a_ledger_refuses_to_forget_what_was_never_in(tables, tmp_path):
    head, out = tmp_path / "head.st", tmp_path / "after.st"
    fit(tables, head, "--ledger")
    foreign = written(table(1, seed=5), tmp_path / "foreign.csv")
    said = refused("forget", head, "--data", foreign, "--out", out)
    assert f"{foreign} cannot be taken from" in said and not out.exists()
    data = tables / "first.csv"
    assert "350 samples" in run("forget", head, "--data", data, "--out", out).output
    refused("forget", out, "--data", data, "--out", tmp_path / "x.st")


def test_a_number_is_learned_and_predicted(tmp_path):
    frame, new = priced(1500), priced(500, seed=1)
    data = written(frame, tmp_path / "rows.csv")
    a, one, two, both = (tmp_path / f"{name}.st" for name in ("a", "one", "two", "both"))
    said = run("fit", "--data", data, "--out", a, "--target", "price", "--count", 128).output
    assert "1,500 samples" in said and "values of price" in said
    for out, rows in ((one, frame[:400]), (two, frame[400:])):
        part = written(rows, tmp_path / "part.parquet")
        run("fit", "--data", part, "--like", a, "--out", out)
    run("merge", two, one, "--out", both)
    assert both.read_bytes() == a.read_bytes()

    truth = new["price"].copy()
    new.loc[7, "price"] = np.nan  # unknown
    said, rows = predictions(a, written(new, tmp_path / "new.csv"), tmp_path / "p.csv")
    errors = truth - np.array([float(row["prediction"]) for row in rows])
    deviations = np.array([float(row["deviation"]) for row in rows])
    assert 5.0 < errors.std() < 12.0  # the noise, and a kink that 128 features do not have
    assert 0.9 < (np.abs(errors) < 2.0 * deviations).mean() < 0.99
    known = errors.drop(7)
    assert f"error {np.sqrt(np.mean(known**2)):.6g}, R^2 " in said and "(499 known)" in said
    share = float(said.split("R^2 ")[1].split()[0])
    assert share == pytest.approx(1 - known.var(ddof=0) / truth.drop(7).var(ddof=0), abs=2e-3)


def test_numbers_with_a_heavy_tail_or_a_constant_one_are_learned(tmp_path):
    data, out = tmp_path / "x.csv", tmp_path / "x.st"
    frame = priced(300)
    frame.loc[5, "price"] = 1e9
    run("fit", "--data", written(frame, data), "--out", out, "--target", "price")
    written(frame.assign(price=7.5), data)
    run("fit", "--data", data, "--out", out, "--target", "price")
    _, rows = predictions(out, data, tmp_path / "p.csv")
    assert {float(row["prediction"]) for row in rows} == {7.5}


@pytest.mark.parametrize("features", ["linear", "relu"])
def test_a_column_of_lists_is_learned(features, tmp_path):
    """As embeddings are usually stored."""
    x = np.random.default_rng(0).normal(size=(400, 24)).astype(np.float32)
    frame = table(400)[["kind"]].assign(embedding=list(x), kind=np.where(x[:, 0] > 0, "yes", "no"))
    data, head = written(frame, tmp_path / "x.parquet"), tmp_path / "h.st"
    assert "columns (1): embedding" in fit(data, head, "--features", features)
    said, _ = predictions(head, data, tmp_path / "p.csv")
    assert int(said.split()[0]) > 380
    shorter = written(frame.assign(embedding=list(x[:, 1:])), tmp_path / "y.parquet")
    assert "23 numbers a row, and the head 24" in refused("predict", head, "--data", shorter)
    written(frame.assign(embedding=[*x[:399], x[399, 1:]]), data)
    said = refused("fit", "--data", data, "--label", "kind", "--out", tmp_path / "x.st")
    assert "column 'embedding'" in said and len(said) < 400  # not the vectors themselves


@pytest.mark.slow
@pytest.mark.parametrize("features", [[], ["--features", "lite0", "--size", 32]])
def test_images_are_learned_and_predicted(features, images, tmp_path):
    head = tmp_path / "head.safetensors"
    said = run("fit", "--data", images, "--out", head, *features).output
    assert "48 samples" in said and "classes (2): above, below" in said
    said, rows = predictions(head, images, tmp_path / "p.csv")
    assert "48 of 48" in said and rows[0]["prediction"] == "above"
    loose = tmp_path / "loose" / "x.png"
    loose.parent.mkdir()
    loose.write_bytes((images / "below" / "1.png").read_bytes())
    said, rows = predictions(head, loose.parent, tmp_path / "p.csv")
    assert [row["prediction"] for row in rows] == ["below"] and "right" not in said


# ------------------------------------------------------------------ what they write


def test_what_is_read_is_not_written_over_nor_is_a_pipe(tables, tmp_path):
    head, data = tmp_path / "head.st", tables / "first.csv"
    link, pipe = tmp_path / "link.csv", tmp_path / "pipe"
    fit(tables, head)
    link.symlink_to(data)
    os.mkfifo(pipe)
    before = head.read_bytes(), data.read_bytes()
    for out, why in ((data, "would overwrite"), (link, "would overwrite"), (pipe, "a pipe")):
        for words in (["fit", "--label", "kind"], ["predict", head], ["forget", head]):
            assert why in refused(*words, "--data", tables, "--out", out)
    assert "would overwrite" in refused("merge", head, head, "--out", head)
    assert "is a folder" in refused("fit", "--data", tables, "--out", tmp_path)
    beyond = data / "x.csv"  # a file is no folder
    assert f"cannot write {beyond}" in refused("predict", head, "--data", tables, "--out", beyond)
    assert (head.read_bytes(), data.read_bytes()) == before and pipe.is_fifo()


@pytest.mark.slow
def test_a_stopped_prediction_leaves_the_file_as_it_was(tables, tmp_path):
    head, out, data = tmp_path / "head.st", tmp_path / "p.csv", tmp_path / "large.csv"
    fit(tables, head)
    written(table(300_000), data)
    out.write_text("as it was")
    words = ["predict", head, "--data", data, "--out", out]
    command = [sys.executable, "-m", "orderless", *map(str, words)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".p.csv.*.part")):
        time.sleep(0.02)
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, said = running.communicate()
    assert running.returncode == 130 and "no file was written or changed" in said
    assert out.read_text() == "as it was" and not list(tmp_path.glob(".p.csv.*"))


def test_samples_of_classes_that_were_never_learned_are_counted(tables, tmp_path):
    head, out = tmp_path / "head.st", tmp_path / "p.csv"
    fit(tables, head)
    frame = table(40, seed=1)
    frame.loc[:9, "kind"] = "a third one"
    said, _ = predictions(head, written(frame, tmp_path / "new.csv"), out)
    assert "10 samples are of classes that the head has not learned" in said and "of 30" in said


def test_a_full_disk_is_named_and_leaves_the_file_as_it_was(tables, tmp_path, monkeypatch):
    head, out = tmp_path / "head.st", tmp_path / "p.csv"
    fit(tables, head)
    out.write_text("as it was")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = refused("predict", head, "--data", tables, "--out", out)
    assert f"cannot write {out}: No space left on device" in said
    assert out.read_text() == "as it was"


# ------------------------------------------------------------------ what they refuse

PLAIN = "a,label\n1,0\n2,1\n"


@pytest.mark.parametrize(
    ("rows", "words", "named"),
    [
        (PLAIN, "--columns a,label", ["'label'"]),
        (PLAIN, "--columns b", ["'b'", "a, label"]),
        (PLAIN, "--target p", ["'p'", "a, label"]),
        (PLAIN, "--features leaves", ["'leaves'", "relu, linear"]),
        (PLAIN, "--features rely", ["'rely'", "did you mean 'relu'?"]),
        (PLAIN, "--features linear --count 8", ["--count"]),
        (PLAIN, "--size 32", ["--size"]),
        ("a,lable\n1,0\n2,1\n", "", ["'label'", "did you mean 'lable'?"]),
        ("a,lable\n1,x\n2,y\n", "", ["'label'", "did you mean 'lable'?"]),
        ("a,label\n1,0\n1e200,1\n", "", ["'a'", "line 3"]),
        ("a,label\n1,0\n,1\n", "", ["'a'", "line 3"]),
        ("a,label\n1,0\n2,\n3,1\n", "", ["'label'", "line 3"]),
        ("a,label\nNA,0\n2,1\n", "", ["'a'", "'NA'"]),
        ("a,label\n1,0\n2,0\n", "", ["two classes", "'label'", "got 0"]),
        ("a,label\n", "", ["no row"]),
        ("", "", ["cannot be read"]),
        ("a,label,label\n1,0,0\n2,1,1\n", "", ["two columns", "'label'"]),
        ("a,label\nfirst,1,0\nlast,2,1\n", "", ["more fields"]),
        ("a;label\n1;0\n2;1\n", "", ["';'", "commas"]),
    ],
)
def test_what_is_wrong_with_a_table_is_a_sentence(rows, words, named, tmp_path):
    (tmp_path / "x.csv").write_text(rows)
    command = ["fit", "--data", tmp_path / "x.csv", "--out", tmp_path / "h.st"]
    said = refused(*command, *words.split())
    assert all(part in said for part in named), said
    assert not (tmp_path / "h.st").exists()


def test_a_head_does_not_take_other_data(tables, images, tmp_path):
    head, out = tmp_path / "head.st", ["--out", tmp_path / "x.st"]
    fit(tables, head)
    assert "head is for tables, and" in refused("predict", head, "--data", images)
    words = ["fit", "--like", head, *out, "--data"]
    assert "--count: it is that of" in refused(*words, tables, "--count", 32)
    new = written(table(5).assign(kind="new"), tmp_path / "new.csv")
    said = refused(*words, new)
    assert "new.csv:2 has the label 'new', which is none of other, same: no class can" in said
    frame = table(5)
    frame.loc[3, "kind"] = None
    for unknown, line in ((frame, 5), (frame.drop(columns="kind"), 2)):
        said = refused(*words, written(unknown, new))
        assert f"new.csv:{line} has no class in column 'kind'" in said
    run("fit", "--data", written(priced(99), new), "--target", "price", "--out", head)
    written(priced(9).assign(price=1e9), new)
    assert "new.csv:2 has the value 1e+09" in refused(*words, new)


def test_a_file_that_is_no_head_says_what_to_do(tables, tmp_path):
    other = ol.save(tmp_path / "estimator.st", {"kind": "ExactClassifier"})
    said = refused("predict", other, "--data", tables)
    assert "was not written by `orderless fit`" in said and "ol.load" in said
    fit(tables, tmp_path / "head.st")
    state = ol.load(tmp_path / "head.st")
    for changed in ({"colour": "red"}, {"features": "waves"}):
        odd = {**state, "recipe": {**state["recipe"], **changed}}
        said = refused("predict", ol.save(tmp_path / "odd.st", odd), "--data", tables)
        assert "odd.st holds no head that can be used here" in said


def test_folders_that_hold_no_images_are_no_classes(images, tmp_path):
    words = ["--out", tmp_path / "x.st"]
    tree = tmp_path / "tree"
    shutil.copytree(images, tree / "train")
    shutil.copytree(images, tree / "test")
    assert f"{tree / 'test'} holds no images" in refused("fit", "--data", tree, *words)
    assert "is for tables, and" in refused("fit", "--data", images, *words, "--target", "p")
    assert "a multiple of 8" in refused("fit", "--data", images, *words, "--count", 63)
    said = refused("fit", "--data", images / "above", *words)
    assert "above must have at least two classes, a folder for each, got none" in said


def test_columns_that_are_no_features_are_told(tmp_path):
    draw = np.random.default_rng(0)
    frame = table(60).assign(constant=3.0, row=range(5, 65), id=draw.permutation(60))
    frame["age"] = np.where(frame["id"] == 59, 58, frame["id"])  # one comes twice
    frame["count"] = draw.integers(60, size=60)
    frame.insert(0, "Unnamed: 0", draw.permutation(60))
    written(frame[:25], tmp_path / "in two" / "1.csv")
    written(frame[25:], tmp_path / "in two" / "2.csv")
    for data in (written(frame, tmp_path / "x.csv"), tmp_path / "in two"):
        said = fit(data, tmp_path / "x.st")
        for name in ("Unnamed: 0", "constant", "row", "id"):
            assert f"warning (said once): column {name!r}" in said
        assert said.count("warning") == 4
    # what has no name is left out, unless it is named
    assert "'Unnamed: 0' is left out" in said and "columns (9): a, b" in said
    named = fit(tmp_path / "in two", tmp_path / "y.st", "--columns", "Unnamed: 0,row")
    assert "columns (2): Unnamed: 0, row" in named
    few = table(9).assign(rank=draw.permutation(9))  # may be by chance
    assert "warning" not in fit(written(few, tmp_path / "x.csv"), tmp_path / "x.st")


def test_pipes_are_not_waited_for_and_names_do_not_move_the_cursor(tables, tmp_path):
    pipe, head = tmp_path / "pipe.csv", tmp_path / "head.st"
    os.mkfifo(pipe)
    fit(tables, head)
    assert "is not a file or folder" in refused("fit", "--data", pipe, "--out", tmp_path / "x.st")
    assert "is not a file written by" in refused("predict", pipe, "--data", tables)
    written(table(5).rename(columns={"a": "\x1b[31ma"}), tmp_path / "red.csv")
    said = refused("predict", head, "--data", tmp_path / "red.csv")
    assert "it has \\x1b[31ma, b" in said and "\x1b" not in said


@pytest.mark.parametrize("command", ["fit", "predict", "merge", "forget", "verify-deletion"])
def test_help_has_an_example(command):
    assert f"Example: orderless {command} " in " ".join(run(command, "--help").output.split())
