"""What is read from a user's files, and the scales that are found in them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.cli.commands import fit, predictions, refused, table, written

from orderless.errors import DataError
from orderless.heads import Head, Recipe
from orderless.heads.files import find_files, read_images
from orderless.heads.survey import survey

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")


def looked_through(data):
    return survey(Recipe("relu", label="kind"), find_files(data))


def test_hidden_files_and_folders_are_no_data(tmp_path):
    data = written(table(20), tmp_path / "x.csv")
    written(table(20), tmp_path / ".ipynb_checkpoints" / "copy.csv")
    written(table(20), tmp_path / ".y.csv")
    assert find_files(tmp_path).paths == [data]


def test_a_place_without_data_is_refused(tmp_path):
    with pytest.raises(DataError, match="none is not a file or folder"):
        find_files(tmp_path / "none")
    with pytest.raises(DataError, match="and holds neither"):
        find_files(tmp_path)
    written(table(3), tmp_path / "x.csv")
    Image.new("RGB", (9, 9)).save(tmp_path / "x.png")
    with pytest.raises(DataError, match="and holds both"):
        find_files(tmp_path)


def test_a_recipe_does_not_depend_on_the_order_of_files_and_rows(tmp_path):
    frame = table(600)
    written(frame[:250], tmp_path / "one" / "1.csv")
    written(frame[250:], tmp_path / "one" / "2.csv")
    written(frame.sample(frac=1.0, random_state=0), tmp_path / "two" / "x.csv")
    one, two = (looked_through(tmp_path / name) for name in ("one", "two"))
    assert one == two and one.classes == ["other", "same"]
    assert one.mean == [math.fsum(frame[name]) / 600 for name in "abcd"]
    assert one.scale == pytest.approx([frame[name].std(ddof=0) for name in "abcd"])


def test_a_class_may_be_named_like_nothing(tmp_path):
    """Namibia's code is NA. In a parquet file, which says what is missing, the same is learned."""
    names = ("NA", "None", "null", "nan", "N/A")
    frame = pandas.concat([table(40).assign(kind=name, a=n) for n, name in enumerate(names)])
    heads = []
    for data in (tmp_path / "x.csv", tmp_path / "x.parquet"):
        heads.append(tmp_path / f"{data.suffix}.st")
        fit(written(frame, data), heads[-1], "--count", 16)
    assert Head.load(heads[0]).recipe.classes == sorted(names)
    assert heads[0].read_bytes() == heads[1].read_bytes()


def test_columns_that_are_no_numbers_are_named(tmp_path):
    odd = {
        "date": pandas.Timestamp("2020-01-01"),
        "pair": [{"a": 1}] * 8,
        "gap": [True, None] * 4,
        "text": "x",
    }
    for name, values in odd.items():
        data = written(table(8).assign(**{name: values}), tmp_path / "x.parquet")
        said = refused("fit", "--data", data, "--out", tmp_path / "x.st", "--label", "kind")
        assert f"column {name!r}" in said


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


def test_rows_of_a_parquet_file_are_numbered_whatever_index_it_was_saved_with(
    tmp_path, monkeypatch
):
    fit(written(table(100), tmp_path / "x.csv"), tmp_path / "head.st", "--count", 16)
    monkeypatch.setattr("orderless.heads.files.ROWS", 40)
    for index in ([f"name {row}" for row in range(100)], np.arange(100)[::-1] * 7):
        data = written(table(100).set_axis(index), tmp_path / "x.parquet")
        _, rows = predictions(tmp_path / "head.st", data, tmp_path / "p.csv")
        assert [row["sample"] for row in rows] == [f"{data}:{row + 2}" for row in range(100)]


def test_a_parquet_file_whose_description_is_damaged_is_refused(tmp_path):
    data = tmp_path / "x.parquet"
    for description in ('{"columns": []}', '{"index_columns": 3, "columns": [7]}', "[]"):
        columns = pyarrow.Table.from_pandas(table(8), preserve_index=False)
        parquet.write_table(columns.replace_schema_metadata({"pandas": description}), data)
        with pytest.raises(DataError, match="x.parquet cannot be read"):
            looked_through(data)


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
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match="bad.jpg cannot be read as an image"):
        read_images([tmp_path / "bad.jpg"], 16)
