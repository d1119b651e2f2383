"""A user's own files: folders of images, or tables, read some rows at a time."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, UserError, did_you_mean

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
TABLES = (".csv", ".parquet")
ROWS = 1 << 13  # of a table at a time
LARGEST = 1e100  # number in a table, whose square is finite


class Files(NamedTuple):
    """All images or all tables below a folder, sorted by name, or a single file."""

    root: Path
    images: bool
    paths: list[Path]

    @property
    def kind(self) -> str:
        return "images" if self.images else "tables"


def find_files(data: Path) -> Files:
    """The images or tables below a folder, or a single file. Hidden files and folders, such as
    the copies in `.ipynb_checkpoints`, are no data."""
    if data.is_file():
        paths = [data]
    elif data.is_dir():
        found = [path for path in data.rglob("*") if path.is_file()]
        paths = sorted(path for path in found if _is_visible(path.relative_to(data)))
    else:  # reading a pipe would block
        raise DataError(f"{data} is not a file or folder: name a folder of images or a table")
    images = [path for path in paths if path.suffix.lower() in IMAGES]
    tables = [path for path in paths if path.suffix.lower() in TABLES]
    if bool(images) == bool(tables):
        kinds = f"images ({', '.join(IMAGES)}) or tables ({', '.join(TABLES)})"
        raise DataError(f"{data} must hold {kinds}, and holds {'both' if images else 'neither'}")
    return Files(data, bool(images), images or tables)


def _is_visible(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts)


def class_of(path: Path, root: Path) -> str | None:
    """The folder of an image below the root; None if it is in the root itself."""
    folder, *inner = path.relative_to(root).parts
    return folder if inner else None


def class_folders(files: Files) -> list[str]:
    """The folders below the root. Raise if one of them holds folders instead of images."""
    folders = {class_of(path, files.root) for path in files.paths}
    classes = sorted(name for name in folders if name)
    holding_images = {path.parent for path in files.paths}
    for name in classes:
        folder = files.root / name
        if folder not in holding_images:
            raise DataError(
                f"{folder} holds no images but folders: name the folder whose folders are the "
                f"classes, such as {folder}"
            )
    return classes


def read_images(paths: Sequence[Path], size: int) -> Tensor:
    """Read images as RGB, resized to uint8 `[B, 3, size, size]`."""
    from PIL import Image

    pixels = []
    for path in paths:
        try:
            with Image.open(path) as image:
                pixels.append(np.asarray(_in_colour(image).resize((size, size))))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as an image: {error}") from None
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()


def _in_colour(image: Any) -> Any:
    """Convert to RGB, upright and on a white ground.

    Pillow itself would ignore how the camera was held, clip 16-bit values at 255, and show the
    colours below transparent pixels, which are often all black.
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise UserError(f"its pixels have 32 bits ({image.mode}): save it with 8 or 16")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


# Tables


def read_table(path: Path, label: str) -> Iterator[Any]:
    """Yield the rows of a file as pandas frames that are not empty, numbered from 0 to the end.

    The column `label`, if there is one, is read as text. Only empty cells are missing: "NA" and
    "None" may be names of classes.
    """
    read = _read_csv if path.suffix.lower() == ".csv" else _read_parquet
    with _readable(path):
        yield from (frame for frame in read(path, label) if len(frame))


def count_rows(path: Path) -> int:
    """About how many rows a file has: all lines of a CSV file are counted."""
    with _readable(path):
        if path.suffix.lower() == ".csv":
            with path.open("rb") as file:
                return sum(1 for _ in file)
        from pyarrow.parquet import read_metadata

        return int(read_metadata(path).num_rows)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say of any error that the file cannot be read."""
    try:
        yield
    except DataError:
        raise
    except ModuleNotFoundError as error:
        extras = "pip install 'orderless[cli,parquet]'"
        raise DataError(f"{path} needs {error.name}: {extras}") from None
    except Exception as error:  # pyarrow raises all kinds of errors for damaged files
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}") from None


def _read_csv(path: Path, label: str) -> Iterator[Any]:
    import pandas

    empty_is_missing: Any = {"keep_default_na": False, "na_values": [""]}
    header = pandas.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
    _refuse_twice(path, header)
    for separator in ";\t|" if len(header) == 1 else "":
        if separator in header[0]:
            raise DataError(
                f"{path} is separated by {separator!r} instead of commas: save it with commas"
            )
    for frame in pandas.read_csv(path, dtype={label: str}, chunksize=ROWS, **empty_is_missing):
        # pandas takes the first fields for names of the rows, which shifts the columns
        if not isinstance(frame.index, pandas.RangeIndex):
            raise DataError(f"{path} has rows with more fields than its header has names")
        yield frame


def _read_parquet(path: Path, label: str) -> Iterator[Any]:
    import pandas
    from pyarrow.parquet import ParquetFile

    rows = 0
    for batch in ParquetFile(path).iter_batches(batch_size=ROWS):
        frame = batch.to_pandas()
        frame.index = pandas.RangeIndex(rows, rows + len(frame))
        rows += len(frame)
        _refuse_twice(path, frame.columns)
        if label in frame:  # as floats, whole numbers beside missing ones would be 1.0, 2.0
            answers = batch.column(label).to_pandas(integer_object_nulls=True)
            frame[label] = answers.map(str, na_action="ignore").to_numpy()
        yield frame


def _refuse_twice(path: Path, names: Any) -> None:
    """Refuse two columns of one name: pandas would rename one, and learn from a second label."""
    twice = names[names.duplicated() & (names != "")]
    if len(twice):
        raise DataError(f"{path} has two columns named {list(twice)[0]!r}: rename one")


def column_of(frame: Any, name: str, path: Path) -> Any:
    """A column of a frame."""
    if name not in frame:
        raise DataError(
            f"{path} has no column {name!r}{did_you_mean(name, frame)}; it has {', '.join(frame)}: "
            "--label or --target and --columns name those to learn"
        )
    return frame[name]


def numbers(frame: Any, name: str, path: Path) -> np.ndarray:
    """A column as float64 `[B, D]`, D = 1 if it holds no lists; all must be below `LARGEST`."""
    column = column_of(frame, name, path)
    try:
        if column.dtype.kind in "biuf":
            values = column.to_numpy(np.float64)
        else:
            values = np.stack([np.asarray(cell, np.float64) for cell in column])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"column {name!r} of {path} does not hold numbers, or lists of one length: "
            f"{str(error)[:80]}; choose other columns with --columns"
        ) from None
    values = values.reshape(len(column), math.prod(values.shape[1:]))
    beyond = frame.index[~(np.abs(values) < LARGEST).all(axis=1)]
    if len(beyond):
        line = beyond[0] + 2  # counted from 1, after the header
        raise DataError(
            f"{path} has no finite number in column {name!r}, line {line} (one beyond "
            f"{LARGEST:g} counts as infinite)"
        )
    return values
