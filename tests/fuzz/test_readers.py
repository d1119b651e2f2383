"""Every reader of a file that has no checksum of ours, fed with damaged and senseless ones."""

import io
import json

import numpy as np
import pandas
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save as serialize
from tests.fuzz.cases import edited, fuzz

import orderless as ol
from orderless.errors import DataError
from orderless.heads import Recipe
from orderless.heads.files import find_files, read_images
from orderless.heads.survey import survey
from orderless.io import FORMAT, checksum

pytestmark = pytest.mark.slow


def png_file() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(buffer, "png")
    return buffer.getvalue()


TABLE = b"a,b,label\n1.5,2,x\n3,4,y\n-5e3,6,x\n"
FILES = {
    "photo.png": png_file(),
    "table.csv": TABLE,
    "table.parquet": pandas.read_csv(io.BytesIO(TABLE)).to_parquet(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_read_or_refused(name, tmp_path):
    path = tmp_path / name

    def read(content):
        path.write_bytes(content)
        if name == "photo.png":
            read_images([path], 8)
        else:
            survey(Recipe("relu", label="label"), find_files(path))

    def check(content):
        try:
            read(content)
        except DataError as error:
            assert str(path) in str(error)

    read(FILES[name])
    fuzz(150, check, edited(FILES[name]))


def test_a_senseless_state_with_the_right_checksum_is_refused(tmp_path):
    """What anybody can write who reads the source."""
    particles = ol.Ensemble(lambda: torch.nn.Linear(3, 2), 2, seed=0)
    tags = st.sampled_from(["$tensor", "$dict", "$tuple", "$complex", "$x", "x"])
    plain = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=8))
    trees = st.recursive(
        plain,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(tags, inner, max_size=2)
        ),
        max_leaves=10,
    )
    path, tensors = tmp_path / "state.st", {"x": torch.zeros(3)}

    def check(tree, form):
        about = {"format": form, "checksum": checksum(tree, tensors), "tree": tree}
        path.write_bytes(serialize(tensors, {"orderless": json.dumps(about)}))
        with pytest.raises(ValueError, match=str(path)):
            ol.load(path, into=particles)

    check("[" * 100_000 + "]" * 100_000, FORMAT)  # nested too deep
    formats = st.sampled_from([FORMAT, 0, "2", None, [2]])
    fuzz(200, check, trees.map(json.dumps), formats)
