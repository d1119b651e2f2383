"""`orderless fit`, `predict`, `merge` and `forget` on tables and folders of images."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.commands import fit, predictions, priced, refused, run, table, written
from tests.test_docs import blocks_of

import orderless as ol
from orderless.heads import Head

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
    a, both = tmp_path / "a.st", tmp_path / "both.st"
    fit(tables, a)
    for name in ("first", "second"):
        data = tables / f"{name}.csv"
        run("fit", "--data", data, "--like", a, "--out", tmp_path / f"{name}.st")
    assert (
        "600 samples"
        in run("merge", tmp_path / "first.st", tmp_path / "second.st", "--out", both).output
    )
    assert both.read_bytes() == a.read_bytes()
    run("forget", both, "--data", tables / "second.csv", "--out", tmp_path / "after.st")
    assert (tmp_path / "after.st").read_bytes() == (tmp_path / "first.st").read_bytes()
    assert (
        "hold the same data"
        in run("verify-deletion", tmp_path / "after.st", tmp_path / "first.st").output
    )
    fit(tables / "first.csv", tmp_path / "own.st")  # with scales of its own
    said = refused("merge", a, tmp_path / "own.st", "--out", tmp_path / "x.st")
    assert "own.st cannot be added to" in said and "different mean" in said and "--like" in said


def test_a_ledger_refuses_to_forget_what_was_never_in(tables, tmp_path):
    head, data = tmp_path / "head.st", tables / "first.csv"
    fit(tables, head, "--ledger")
    foreign = written(table(1, seed=5), tmp_path / "foreign.csv")
    words = ["--out", tmp_path / "after.st"]
    assert "never all in it" in refused("forget", head, "--data", foreign, *words)
    assert "350 samples" in run("forget", head, "--data", data, *words).output
    said = refused("forget", tmp_path / "after.st", "--data", data, "--out", tmp_path / "x.st")
    assert "first.csv cannot be taken from" in said and not (tmp_path / "x.st").exists()


def test_a_number_is_learned_and_predicted(tmp_path):
    frame, new = priced(1500), priced(500, seed=1)
    data = written(frame, tmp_path / "rows.csv")
    a = tmp_path / "a.st"
    words = ["--target", "price", "--count", 128]
    said = run("fit", "--data", data, "--out", a, *words).output
    assert "1,500 samples" in said and "values of price" in said
    for name, rows in (("one", frame[:400]), ("two", frame[400:])):
        part = written(rows, tmp_path / f"{name}.parquet")
        run("fit", "--data", part, "--like", a, "--out", tmp_path / f"{name}.st")
    run("merge", tmp_path / "two.st", tmp_path / "one.st", "--out", tmp_path / "sum.st")
    assert (tmp_path / "sum.st").read_bytes() == a.read_bytes()

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
    frame = table(0).drop(columns=list("abcd")).assign(embedding=list(x))
    frame = frame.reindex(range(400)).assign(
        embedding=list(x), kind=np.where(x[:, 0] > 0, "yes", "no")
    )
    data = written(frame, tmp_path / "x.parquet")
    assert "columns (1): embedding" in fit(data, tmp_path / "h.st", "--features", features)
    said, _ = predictions(tmp_path / "h.st", data, tmp_path / "p.csv")
    assert int(said.split()[0]) > 380
    shorter = written(frame.assign(embedding=list(x[:, 1:])), tmp_path / "y.parquet")
    said = refused("predict", tmp_path / "h.st", "--data", shorter)
    assert "y.parquet has 23 numbers a row, and the head 24" in said
    ragged = frame.assign(embedding=[*x[:399], x[399, 1:]])
    said = refused("fit", "--data", written(ragged, data), "--label", "kind", "--out", data)
    assert "would overwrite" in said
    said = refused("fit", "--data", data, "--label", "kind", "--out", tmp_path / "x.st")
    assert "column 'embedding'" in said and "lists of different lengths" in said


@pytest.mark.slow
@pytest.mark.parametrize("features", [[], ["--features", "lite0", "--size", 32]])
def test_images_are_learned_and_predicted(features, images, tmp_path):
    head = tmp_path / "head.safetensors"
    said = run("fit", "--data", images, "--out", head, *features).output
    assert "48 samples" in said and "classes (2): above, below" in said
    said, rows = predictions(head, images, tmp_path / "p.csv")
    assert "48 of 48" in said and rows[0]["prediction"] == "above"
    (tmp_path / "loose").mkdir()
    loose = tmp_path / "loose" / "x.png"
    loose.write_bytes((images / "below" / "1.png").read_bytes())
    said, rows = predictions(head, tmp_path / "loose", tmp_path / "p.csv")
    assert [row["prediction"] for row in rows] == ["below"] and "right" not in said


# ------------------------------------------------------------------ what they write


def test_what_is_read_is_not_written_over(tables, tmp_path):
    head, data = tmp_path / "head.st", tables / "first.csv"
    fit(tables, head)
    before = head.read_bytes(), data.read_bytes()
    (tmp_path / "link.csv").symlink_to(data)
    for out in (data, tmp_path / "link.csv"):
        assert "would overwrite" in refused("fit", "--data", tables, "--out", out)
        assert "would overwrite" in refused("predict", head, "--data", tables, "--out", out)
        assert "would overwrite" in refused("forget", head, "--data", data, "--out", out)
    assert "would overwrite" in refused("merge", head, head, "--out", head)
    assert (head.read_bytes(), data.read_bytes()) == before
    assert "is a folder" in refused("fit", "--data", tables, "--out", tmp_path)


def test_a_device_is_not_replaced(tables, tmp_path):
    head, pipe = tmp_path / "head.st", tmp_path / "pipe"
    os.mkfifo(pipe)
    fit(tables, head)
    for words in (["fit", "--label", "kind"], ["predict", head], ["forget", head]):
        said = refused(*words, "--data", tables, "--out", pipe)
        assert f"cannot write {pipe}: it is a device or a pipe" in said
    assert stat.S_ISFIFO(pipe.stat().st_mode)


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


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ("a,label\n1,0\n2,1\n", ["--columns", "a,label"], "'label' is to be predicted: leave it"),
        ("a,label\n1,0\n1e200,1\n", [], "no finite number in column 'a', line 3"),
        ("a,label\n1,0\n,1\n", [], "no finite number in column 'a', line 3"),
        ("a,label\n", [], "x.csv holds no row to learn from"),
        ("", [], "x.csv cannot be read"),
        ("a,label\n1,0\n2,\n3,1\n", [], "no label in column 'label', line 3"),
        ("a,label\n1,0\n2,0\n", [], "must have at least two classes, named in the column 'label'"),
        ("a,lable\n1,0\n2,1\n", [], "no column 'label' for the labels (did you mean 'lable'?)"),
        ("a,label\n1,0\n2,1\n", ["--target", "p"], "no column 'p' for the values; it has a, label"),
        ("a,p\n1,0\n2,dear\n", ["--target", "p"], "column 'p' of"),
        ("a,p\n1,0\n2,\n", ["--target", "p"], "no finite number in column 'p', line 3"),
        ("a,label\nNA,0\n2,1\n", [], "holds 'NA', which is not a number"),
        ("a,label\n1,0\n2,1\n", ["--columns", "b"], "has no column 'b'; it has a, label"),
        ("a,label,label\n1,0,0\n2,1,1\n", [], "has two columns named 'label'"),
        ("a,label\nfirst,1,0\nlast,2,1\n", [], "more fields than its header has names"),
        ("a;label\n1;0\n2;1\n", [], "is separated by ';' instead of commas"),
        ("a\tlabel\n1\t0\n2\t1\n", [], r"is separated by '\t' instead of commas"),
        ("a,label\n1,0\n2,1\n", ["--features", "leaves"], "leaves is for images, and"),
        ("a,label\n1,0\n2,1\n", ["--features", "rely"], "got 'rely' (did you mean 'relu'?)"),
        ("a,label\n1,0\n2,1\n", ["--features", "linear", "--count", 8], "--count: linear features"),
        ("a,label\n1,0\n2,1\n", ["--size", 32], "--size: it is for images"),
    ],
)
def test_what_is_wrong_with_a_table_is_a_sentence(rows, words, said, tmp_path):
    (tmp_path / "x.csv").write_text(rows)
    assert said in refused("fit", "--data", tmp_path / "x.csv", "--out", tmp_path / "h.st", *words)
    assert not (tmp_path / "h.st").exists()


def test_a_head_does_not_take_other_data(tables, images, tmp_path):
    head, out = tmp_path / "head.st", ["--out", tmp_path / "x.st"]
    fit(tables, head)
    assert "head is for tables, and" in refused("predict", head, "--data", images)
    words = ["fit", "--like", head, *out, "--data"]
    said = refused(*words, tables, "--count", 32)
    assert "--count: it is that of" in said and "leave it out" in said
    new = written(table(5).assign(kind="new"), tmp_path / "new.csv")
    assert "new.csv:2 has the label 'new', which is none of other, same" in refused(*words, new)
    run("fit", "--data", written(priced(99), new), "--target", "price", "--out", head)
    written(priced(9).assign(price=1e9), new)
    assert "lies too far from those of" in refused(*words, new)


def test_a_file_that_is_no_head_says_what_to_do(tables, tmp_path):
    other = ol.save(tmp_path / "estimator.st", {"kind": "ExactClassifier"})
    said = refused("predict", other, "--data", tables)
    assert "was not written by `orderless fit`: load it in Python with ol.load" in said
    fit(tables, tmp_path / "head.st")
    state = ol.load(tmp_path / "head.st")
    state["recipe"]["colour"] = "red"
    said = refused("predict", ol.save(tmp_path / "odd.st", state), "--data", tables)
    assert "odd.st holds no head that can be used here" in said


def test_folders_that_hold_no_images_are_no_classes(images, tmp_path):
    words = ["--out", tmp_path / "x.st"]
    tree = tmp_path / "tree"
    shutil.copytree(images, tree / "train")
    shutil.copytree(images, tree / "test")
    said = refused("fit", "--data", tree, *words)
    assert "holds no images but folders such as" in said and "tree/t" in said
    assert "is for tables, and" in refused("fit", "--data", images, *words, "--target", "p")
    assert "a multiple of 8" in refused("fit", "--data", images, *words, "--count", 63)
    said = refused("fit", "--data", images / "above", *words)
    assert "above must have at least two classes, a folder for each, got none" in said


def test_columns_that_are_no_features_are_told(tmp_path):
    frame = table(60).assign(constant=3.0)
    frame.insert(0, "Unnamed: 0", range(60))
    said = fit(written(frame, tmp_path / "x.csv"), tmp_path / "x.st")
    assert "column 'Unnamed: 0' counts the rows: leave it out with --columns" in said
    assert "column 'constant' has one value only" in said
    assert said.count("warning") == 2


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


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    for block in blocks_of(Path(__file__).parents[2] / "docs" / "fit.md"):
        if block.language == "python":
            exec(block.text, {})
        for line in block.text.splitlines() if block.language == "bash" else ():
            program, *words = line.split()
            assert program == "orderless"
            said.append(run(*words).output)
    assert "400 of 400" in said[1] and "(400 known)" in said[3]
    assert torch.is_tensor(Head.load("head.safetensors").predict([[5.0, 3.0, 45.0]]))
