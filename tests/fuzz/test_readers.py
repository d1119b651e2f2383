"""Every reader of a file that has no checksum of ours, fed with damaged and senseless ones."""

import io
import json
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pandas
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save as serialize
from tests.fuzz.cases import anything, edited, fuzz

import orderless as ol
from orderless import io as storage
from orderless.errors import DataError
from orderless.heads import Recipe
from orderless.heads.files import find_files, read_images
from orderless.heads.survey import survey

pytestmark = pytest.mark.slow


def png_file() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(buffer, "png")
    return buffer.getvalue()


def parquet_file() -> bytes:
    buffer = io.BytesIO()
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.5], "b": [4, 5, 6], "label": ["x", "y", "x"]})
    frame.to_parquet(buffer)
    return buffer.getvalue()


def look_at(path: Path) -> None:
    survey(Recipe("relu", label="label"), find_files(path))


READERS = {
    "photo.png": (png_file(), lambda path: read_images([path], 8)),
    "table.csv": (b"a,b,label\n1.5,2,x\n3,4,y\n-5e3,6,x\n", look_at),
    "table.parquet": (parquet_file(), look_at),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", READERS)
def test_a_changed_file_is_read_or_refused(name, tmp_path, record_property):
    whole, read = READERS[name]

    def check(content):
        path = Path(mkdtemp(dir=tmp_path), name)
        path.write_bytes(content)
        try:
            read(path)
        except DataError as error:
            assert str(path) in str(error)

    check(whole)
    fuzz(record_property, name, 150, check, edited(whole))


def test_a_senseless_state_with_the_right_checksum_is_refused(tmp_path, record_property):
    """What anybody can write who reads the source."""
    particles = ol.Ensemble(lambda: torch.nn.Linear(3, 2), 2, seed=0)
    tags = st.sampled_from(["$tensor", "$dict", "$tuple", "$float", "$complex", "$x", "x"])
    trees = st.recursive(
        anything,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(tags, inner, max_size=2)
        ),
        max_leaves=10,
    )
    path, tensors = tmp_path / "state.st", {"x": torch.zeros(3)}

    def check(tree, form):
        text = tree if isinstance(tree, str) else json.dumps(tree)
        about = {"format": form, "checksum": storage.checksum(text, tensors), "tree": text}
        path.write_bytes(serialize(tensors, {"orderless": json.dumps(about)}))
        with pytest.raises(ValueError, match=str(path)):
            ol.load(path, into=particles)

    check("[" * 100_000 + "]" * 100_000, storage.FORMAT)  # nested too deep
    formats = st.sampled_from([storage.FORMAT, 0, "2", None, [2]])
    fuzz(record_property, "senseless states", 200, check, trees, formats)
