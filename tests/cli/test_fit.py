"""`orderless fit` and `orderless predict` on folders of images, CSV and parquet."""

import csv
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.test_docs import blocks_of
from typer.testing import CliRunner

import orderless as ol
from orderless.cli.main import app
from orderless.distributed.head import Head, Recipe, look_through
from orderless.files import find_files, read_images
from orderless_lab.scenarios import DataError

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def refused(*words):
    said = run(*words, code=2).stderr
    assert said.count("\n") == 1, said
    return said


def table(rows, seed=0):
    """Two clouds of four numbers, on scales of their own."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 4))
    label = np.where(x[:, 0] * x[:, 1] > 0, "same", "other")
    x = x * [1.0, 1e4, 1e-3, 2.0] + [0.0, 7e5, 0.0, -3.0]
    return pandas.DataFrame(x, columns=list("abcd")).assign(kind=label)


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    frame = table(600)
    frame[:250].to_csv(folder / "first.csv", index=False)
    frame[250:].to_csv(folder / "second.csv", index=False)
    return folder


@pytest.fixture
def images(tmp_path):
    """Bright below or above, 24 of each, of several sizes and kinds."""
    generator = np.random.default_rng(0)
    for name, rows in (("above", slice(0, 20)), ("below", slice(20, 40))):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(24):
            pixels = generator.integers(0, 120, (40, 40), dtype=np.uint8)
            pixels[rows] += 120
            kind = "png" if number % 2 else "jpg"
            Image.fromarray(pixels).save(folder / f"{number}.{kind}")
    return tmp_path / "images"


def fit(data, out, *words):
    return run("fit", "--data", data, "--out", out, "--label", "kind", "--workers", 1, *words)


def predictions(head, data, out, *words):
    said = run("predict", head, "--data", data, "--out", out, *words).output
    with open(out, newline="") as file:
        return said, list(csv.DictReader(file))


def test_a_table_is_learned_and_predicted(tables, tmp_path):
    head = tmp_path / "head.safetensors"
    assert "600 samples, 2 classes" in fit(tables, head).output
    assert not list(tmp_path.glob("*.parts"))
    said, rows = predictions(head, tables, tmp_path / "p.csv", "--probabilities")
    right = sum(
        row["prediction"] == truth for row, truth in zip(rows, table(600)["kind"], strict=True)
    )
    assert right > 540 and f"{right} of 600" in said
    assert rows[0]["sample"] == f"{tables / 'first.csv'}:2"
    assert all(abs(float(r["same"]) + float(r["other"]) - 1) < 1e-4 for r in rows)
    unlabelled = tmp_path / "new.csv"
    table(9, seed=1).drop(columns="kind").to_csv(unlabelled, index=False)
    said, rows = predictions(head, unlabelled, tmp_path / "p.csv")
    assert len(rows) == 9 and "right" not in said


def test_files_rows_formats_and_workers_in_any_order_give_the_same_file(tables, tmp_path):
    fit(tables, tmp_path / "a.st")
    other = tmp_path / "other"
    other.mkdir()
    frame = table(600).sample(frac=1, random_state=1)
    frame[:10].to_parquet(other / "a.parquet")
    frame[10:].to_parquet(other / "b.parquet")
    fit(other, tmp_path / "b.st")
    assert (tmp_path / "a.st").read_bytes() == (tmp_path / "b.st").read_bytes()
    fit(tables / "first.csv", tmp_path / "half.st", "--like", tmp_path / "a.st")
    fit(tables / "second.csv", tmp_path / "rest.st", "--like", tmp_path / "a.st")
    half, rest = Head.load(tmp_path / "half.st"), Head.load(tmp_path / "rest.st")
    Head(half.recipe, half.filter + rest.filter).save(tmp_path / "sum.st")
    assert (tmp_path / "sum.st").read_bytes() == (tmp_path / "a.st").read_bytes()


def priced(rows, seed=0):
    """A number that depends on two of three columns, far from 0 and with noise of deviation 5."""
    generator = np.random.default_rng(seed)
    frame = pandas.DataFrame(generator.normal(size=(rows, 3)), columns=list("abc"))
    noise = generator.normal(size=rows) * 5.0
    return frame.assign(price=1e4 + 100.0 * np.abs(frame["a"]) + 50.0 * frame["b"] + noise)


def test_a_number_is_learned_and_predicted(tmp_path):
    frame, new = priced(1500), priced(500, seed=1)
    for name, rows in (("one", frame[:400]), ("two", frame[400:])):
        make(tmp_path / name)
        rows.to_csv(tmp_path / name / "rows.csv", index=False)
    make(tmp_path / "both")
    frame.sample(frac=1.0, random_state=0).to_parquet(tmp_path / "both" / "rows.parquet")
    words = ["--target", "price", "--count", 128]
    assert "1,500 samples, values of price" in fit(tmp_path / "both", tmp_path / "a", *words).output
    for name in ("one", "two"):
        fit(tmp_path / name, tmp_path / f"{name}.st", "--like", tmp_path / "a")
    one, two = (Head.load(tmp_path / f"{name}.st") for name in ("one", "two"))
    Head(one.recipe, two.filter + one.filter).save(tmp_path / "sum")
    assert (tmp_path / "sum").read_bytes() == (tmp_path / "a").read_bytes()

    truth = new["price"].copy()
    new.loc[7, "price"] = np.nan  # unknown
    new.to_csv(tmp_path / "new.csv", index=False)
    said, rows = predictions(tmp_path / "a", tmp_path / "new.csv", tmp_path / "p.csv")
    errors = truth - np.array([float(row["prediction"]) for row in rows])
    deviations = np.array([float(row["deviation"]) for row in rows])
    assert 5.0 < errors.std() < 12.0  # the noise, and a kink that 128 features do not have
    assert 0.9 < (np.abs(errors) < 2.0 * deviations).mean() < 0.99
    known = errors.drop(7)
    assert f"error {np.sqrt(np.mean(known**2)):.6g}, R^2 " in said and "(499 known)" in said
    share = float(said.split("R^2 ")[1].split()[0])
    assert share == pytest.approx(1 - known.var(ddof=0) / truth.drop(7).var(ddof=0), abs=2e-3)


def test_numbers_with_a_heavy_tail_a_constant_one_and_wrong_ones(tmp_path, images):
    data, out = tmp_path / "x.csv", tmp_path / "x.st"
    words = ["fit", "--data", data, "--out", out, "--target", "price", "--workers", 1]
    frame = priced(300)
    frame.loc[5, "price"] = 1e9
    frame.to_csv(data, index=False)
    run(*words)
    frame.assign(price=7.5).to_csv(data, index=False)
    run(*words)
    _, rows = predictions(out, data, tmp_path / "p.csv")
    assert {float(row["prediction"]) for row in rows} == {7.5}
    priced(9).to_csv(data, index=False)
    assert "lies too far from those of" in refused(*words, "--like", out)
    frame.assign(price=np.where(frame.index == 3, np.nan, 1.0)).to_csv(data, index=False)
    assert "no finite number in column 'price', line 5" in refused(*words)
    assert "x.csv:5 has no value in column 'price'" in refused(*words, "--like", out)
    frame.assign(price="dear").to_csv(data, index=False)
    assert "column 'price' of" in refused(*words)
    frame.drop(columns="price").to_csv(data, index=False)
    assert "no column 'price' for the values" in refused(*words) and "--target" in refused(*words)
    assert "x.csv:2 has no value" in refused(*words, "--like", out)
    words[2] = images
    assert "--target is for tables" in refused(*words)


def test_a_parquet_file_whose_description_is_damaged_is_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = tmp_path / "x.parquet"
    for description in ('{"columns": []}', '{"index_columns": 3, "columns": [7]}', "[]"):
        columns = arrow.Table.from_pandas(table(8), preserve_index=False)
        changed = columns.replace_schema_metadata({"pandas": description})
        parquet.write_table(changed, data)
        words = ["fit", "--data", data, "--out", tmp_path / "x.st", "--label", "kind"]
        assert "x.parquet cannot be read" in refused(*words)


def test_what_is_read_is_not_written_over(tables, tmp_path):
    head, data = tmp_path / "head.st", tables / "first.csv"
    fit(tables, head)
    before = head.read_bytes(), data.read_bytes()
    (tmp_path / "link.csv").symlink_to(data)
    for out in (data, tmp_path / "link.csv"):
        assert "would overwrite" in refused("fit", "--data", tables, "--out", out)
        assert "would overwrite" in refused("predict", head, "--data", tables, "--out", out)
    assert "would overwrite" in refused("predict", head, "--data", tables, "--out", head)
    assert (head.read_bytes(), data.read_bytes()) == before
    assert "is a folder: name a file" in refused("fit", "--data", tables, "--out", tmp_path)
    assert not (tmp_path.parent / f"{tmp_path.name}.parts").exists()


def test_the_answer_is_no_input_numbers_are_finite_and_tables_have_rows(tmp_path):
    data = tmp_path / "x.csv"
    words = ["fit", "--data", data, "--out", tmp_path / "x.st", "--workers", 1]
    data.write_text("a,label\n" + "1,0\n2,1\n" * 4)
    for answer in ("--label", "--target"):
        said = refused(*words, answer, "label", "--columns", "a,label")
        assert "column 'label' is to be predicted: leave it out of --columns" in said
    data.write_text("a,label\n1,0\n1e200,1\n")
    assert "no finite number in column 'a', line 3" in refused(*words)
    data.write_text("a,label\n")
    assert "x.csv holds no row to learn from" in refused(*words)
    assert "x.csv holds no row to learn from" in refused(*words, "--target", "label")
    data.write_text("a,label\n1,0\n2,\n3,1\n")
    assert "x.csv has no label in column 'label', line 3" in refused(*words)


def test_a_class_may_be_named_like_nothing(tmp_path):
    """Namibia's code is NA. In a parquet file, which says what is missing, the same is learned."""
    names = ("NA", "None", "null", "nan", "N/A")
    frame = pandas.concat([table(40).assign(kind=name, a=n) for n, name in enumerate(names)])
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    heads = [tmp_path / "csv.st", tmp_path / "parquet.st"]
    for head, data in zip(heads, ("x.csv", "x.parquet"), strict=True):
        assert "200 samples, 5 classes" in fit(tmp_path / data, head).output
        assert Head.load(head).recipe.classes == sorted(names)
    assert heads[0].read_bytes() == heads[1].read_bytes()
    said, rows = predictions(heads[0], tmp_path / "x.csv", tmp_path / "p.csv")
    assert "of 200 (" in said and {row["prediction"] for row in rows} == set(names)
    (tmp_path / "x.csv").write_text("a,b,kind\n1,2,NA\n1,NA,None\n")
    words = ["fit", "--data", tmp_path / "x.csv", "--out", tmp_path / "x.st", "--label", "kind"]
    assert "x.csv holds 'NA', which is not a number" in refused(*words)


def test_columns_that_are_no_numbers_are_named(tmp_path):
    data = tmp_path / "x.parquet"
    words = ["fit", "--data", data, "--out", tmp_path / "x.st", "--label", "kind"]
    odd = {
        "date": pandas.Timestamp("2020-01-01"),
        "pair": [{"a": 1}] * 8,
        "list": [[1.0, 2.0]] * 8,
        "gap": [True, None] * 4,
        "text": "x",
    }
    for name, values in odd.items():
        table(8).assign(**{name: values}).to_parquet(data)
        assert f"column {name!r}" in refused(*words)
    table(8).assign(word=["1", "2", "three", "4", "5", "6", "7", "8"]).to_parquet(data)
    assert "column 'word' of" in refused(*words) and "holds 'three'" in refused(*words)
    parquet.write_table(parquet.read_table(data).rename_columns(list("aacde") + ["kind"]), data)
    assert "has two columns named 'a': rename one" in refused(*words)
    twice = tmp_path / "x.csv"  # pandas would read a second column of labels as kind.1
    twice.write_text("a,kind,kind\n" + "1,0,0\n2,1,1\n" * 4)
    assert "has two columns named 'kind'" in refused("fit", "--data", twice, *words[3:])


def test_labels_that_are_numbers_are_written_and_counted_as_they_are(tmp_path):
    """-1 is no formula, and whole numbers beside missing ones are no floats."""
    a = np.linspace(-1.0, 1.0, 40)
    kind = [None if place == 5 else int(np.sign(value)) for place, value in enumerate(a)]
    data = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"a": a, "kind": kind}).drop_null(), data)
    fit(data, tmp_path / "head.st", "--count", 16)
    parquet.write_table(pyarrow.table({"a": a, "kind": kind}), data)
    said, rows = predictions(tmp_path / "head.st", data, tmp_path / "p.csv")
    assert {row["prediction"] for row in rows} == {"-1", "1"} and "of 39 (" in said


def test_pipes_are_not_waited_for_and_names_do_not_move_the_cursor(tables, tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    assert "is not a file or folder" in refused("fit", "--data", pipe, "--out", tmp_path / "x.st")
    fit(tables, tmp_path / "head.st")
    assert "is not a file or folder" in refused("predict", tmp_path / "head.st", "--data", pipe)
    assert "is not a file written by" in refused("predict", pipe, "--data", tables)
    assert "is not a file written by" in refused("verify-deletion", pipe, tmp_path / "head.st")
    table(5).rename(columns={"a": "\x1b[31ma"}).to_csv(tmp_path / "red.csv", index=False)
    said = refused("predict", tmp_path / "head.st", "--data", tmp_path / "red.csv")
    assert "it has \\x1b[31ma, b" in said and "\x1b" not in said


def test_scales_are_those_of_exact_arithmetic(tables):
    found = look_through(find_files(tables), "kind", [])
    frame = pandas.concat(pandas.read_csv(tables / f"{n}.csv") for n in ("first", "second"))
    for place, name in enumerate("abcd"):
        values = [Fraction(value) for value in frame[name]]
        assert found["mean"][place] == float(sum(values) / 600)
        assert found["scale"][place] == pytest.approx(frame[name].std(ddof=0), rel=1e-9)


def test_a_constant_has_scale_1_and_a_small_deviation_from_a_large_mean_its_own(tmp_path):
    data = tmp_path / "x.csv"
    offset = np.arange(64) % 2 * 2.0 - 1.0
    table(64).assign(a=0.1, b=0.3, c=1e8 + offset / 1024).to_csv(data, index=False)
    scales = look_through(find_files(data), "kind", [])["scale"]
    assert scales[:3] == [1.0, 1.0, 1 / 1024]


def test_rows_of_a_parquet_file_are_numbered_whatever_index_it_was_saved_with(
    tables, tmp_path, monkeypatch
):
    fit(tables, tmp_path / "head.st", "--count", 16)
    monkeypatch.setattr("orderless.files.ROWS", 40)
    for index in (range(100), [f"name {row}" for row in range(100)], np.arange(100)[::-1] * 7):
        data = tmp_path / "x.parquet"
        table(100).set_axis(index).to_parquet(data)
        _, rows = predictions(tmp_path / "head.st", data, tmp_path / "p.csv")
        assert [row["sample"] for row in rows] == [f"{data}:{row + 2}" for row in range(100)]


@pytest.mark.parametrize("row", ["first,1,2,3,4,same", "1,2,3,4,same,"])
def test_rows_with_more_fields_than_the_header_has_names_are_refused(row, tmp_path):
    data = tmp_path / "x.csv"
    data.write_text("a,b,c,d,kind\n" + f"{row}\n" * 3)
    words = ["fit", "--data", data, "--out", tmp_path / "x.st", "--label", "kind"]
    assert "more fields than its header has names" in refused(*words)


@pytest.mark.slow
def test_images_are_learned_and_predicted(images, tmp_path):
    head = tmp_path / "head.safetensors"
    fit(images, head, "--count", 64, "--maps", 2)
    said, rows = predictions(head, images, tmp_path / "p.csv")
    assert "48 of 48" in said and rows[0]["prediction"] == "above"
    loose = tmp_path / "loose"
    loose.mkdir()
    (images / "below" / "1.png").rename(loose / "x.png")
    said, rows = predictions(head, loose, tmp_path / "p.csv")
    assert [row["prediction"] for row in rows] == ["below"] and "right" not in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "tif"])
def test_sixteen_bits_are_scaled_and_not_cut_off(kind, tmp_path):
    fine = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257  # 0 to 65535
    Image.fromarray(fine).save(tmp_path / f"fine.{kind}")
    Image.fromarray((fine // 257).astype(np.uint8)).save(tmp_path / f"coarse.{kind}")
    swapped = Image.frombytes("I;16B", (16, 16), fine.astype(">u2").tobytes())
    swapped.save(tmp_path / "swapped.tif")  # as ImageJ writes it
    fine, coarse = read_images([tmp_path / f"{name}.{kind}" for name in ("fine", "coarse")], 16)
    assert torch.equal(fine, coarse) and coarse.max() == 255
    assert torch.equal(read_images([tmp_path / "swapped.tif"], 16)[0], coarse)
    Image.fromarray(np.ones((16, 16), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(DataError, match="32 bits"):
        read_images([tmp_path / "float.tif"], 16)


def test_images_are_upright_and_what_is_transparent_is_white(tmp_path):
    pixels = np.zeros((16, 16, 4), np.uint8)  # black everywhere, visible at the upper left
    pixels[:8, :8, 3] = 255
    want = torch.full((3, 16, 16), 255, dtype=torch.uint8)
    want[:, :8, :8] = 0
    drawing = Image.fromarray(pixels)
    for mode in ("RGBA", "LA", "P"):
        drawing.convert(mode).save(tmp_path / f"{mode}.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    drawing.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    for found in read_images(sorted(tmp_path.glob("*.png")), 16):
        assert torch.equal(found, want)


@pytest.mark.slow
def test_a_backbone_reads_images(images, tmp_path):
    fit(images, tmp_path / "head.st", "--features", "lite0", "--size", 32)
    assert "48 of 48" in predictions(tmp_path / "head.st", images, tmp_path / "p.csv")[0]


def test_a_stopped_fit_goes_on(tables, tmp_path, monkeypatch):
    head = tmp_path / "head.st"
    seen, update = [], ol.ExactHead.update

    def counted(self, x, y):
        if len(seen) == 1:
            seen.append("stopped")
            raise KeyboardInterrupt
        seen.append(len(x))
        update(self, x, y)

    monkeypatch.setattr(ol.ExactHead, "update", counted)
    words = ["fit", "--data", tables, "--out", head, "--label", "kind", "--workers", 1]
    assert run(*words, code=130).stderr.endswith("orderless: stopped\n")
    assert not head.exists() and len(list(tmp_path.glob("head.st.parts/parts/*"))) == 1
    run(*words)
    assert seen == [250, "stopped", 350]
    assert Head.load(head).filter.samples == 600


@pytest.mark.slow
def test_mistakes_are_sentences(tables, images, tmp_path):
    out = ["--out", tmp_path / "x.st"]
    assert "is not a file or folder" in refused("fit", "--data", tmp_path / "none", *out)
    assert "holds neither images" in refused("fit", "--data", make(tmp_path / "empty"), *out)
    assert "holds images (" in refused("fit", "--data", tmp_path, *out)
    assert "no column 'label' for the labels; it has a, b" in refused("fit", "--data", tables, *out)
    words = ["fit", "--data", tables, *out, "--label", "a"]
    assert "column 'kind' of" in refused(*words) and "which is not a number" in refused(*words)
    words = ["fit", "--data", tables, *out, "--label", "kind"]
    assert "has no column 'z'; it has a" in refused(*words, "--columns", "a,z")
    assert "is for images: tables take relu" in refused(*words, "--features", "leaves")
    assert "must be one of auto" in refused(*words, "--features", "magic")
    assert "a multiple of 8" in refused("fit", "--data", images, *out, "--count", 63)
    said = refused("fit", "--data", images / "above", *out)
    assert "above must have at least two classes, a folder for each, got none" in said
    (images / "above" / "0.jpg").write_bytes(b"no image")
    assert "0.jpg cannot be read as an image" in refused("fit", "--data", images, *out)
    frame = table(20)
    frame.loc[3, "b"] = np.nan
    frame.to_csv(tables / "third.csv", index=False)
    assert "no finite number in column 'b', line 5" in refused(*words)
    (tables / "third.csv").write_text("")
    assert "third.csv cannot be read" in refused(*words)
    (tables / "third.csv").unlink()
    fit(tables, tmp_path / "head.st")
    said = refused("predict", tmp_path / "head.st", "--data", images)
    assert "this head is for tables" in said and "holds images" in said
    table(5).assign(kind="new").to_csv(tables / "new.csv", index=False)
    words = ["fit", "--data", tables, *out, "--like", tmp_path / "head.st", "--workers", 1]
    assert "has the label 'new', which is none of other, same" in refused(*words)
    ol.save(tmp_path / "plain.st", {"a": torch.zeros(1)})
    said = refused("predict", tmp_path / "plain.st", "--data", tables)
    assert "was not written by `orderless fit`" in said


def test_options_that_would_be_ignored_are_refused(tables, images, tmp_path):
    fit(tables, tmp_path / "head.st", "--count", 16)
    words = ["fit", "--data", tables, "--out", tmp_path / "new.st", "--like", tmp_path / "head.st"]
    assert "has count 16, not 32: leave out --count" in refused(*words, "--count", 32)
    assert "has features relu, not lite0" in refused(*words, "--features", "lite0")
    assert "has maps 1, not 2" in refused(*words, "--maps", 2)
    assert "has target None, not a" in refused(*words, "--target", "a")
    assert "has columns ['a', 'b', 'c', 'd'], not ['a']" in refused(*words, "--columns", "a")
    assert "has label kind, not other: leave out --label" in refused(*words, "--label", "other")
    run(*words, "--count", 16, "--columns", "a, b,c,d", "--workers", 1)
    words = ["fit", "--out", tmp_path / "other.st"]
    assert "--size is for images" in refused(*words, "--data", tables, "--size", 32)
    assert "--columns is for tables" in refused(*words, "--data", images, "--columns", "a")


def test_predict_makes_the_folder_of_its_file(tables, tmp_path):
    fit(tables, tmp_path / "head.st", "--count", 16)
    _, rows = predictions(tmp_path / "head.st", tables, tmp_path / "new" / "folder" / "p.csv")
    assert len(rows) == 600


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
    right, _, every = said[1].split()[:3]
    assert int(every) == 400 and int(right) > 380
    assert "root mean squared error 1.8" in said[3] and "(400 known)" in said[3]


@pytest.mark.parametrize("wrong", [{"maps": 2**62}, {"count": -1}, {"scale": [0.0]}, {"mean": []}])
def test_a_recipe_that_makes_no_sense_is_refused(wrong):
    plain = {"columns": ["a"], "mean": [0.0], "scale": [1.0]}
    with pytest.raises(ValueError, match=r"must lie between .* got|a mean and a scale"):
        Recipe("relu", **{"count": 8, "maps": 1, "seed": 0, "classes": ["x"], **plain, **wrong})


def make(folder):
    folder.mkdir()
    return folder
