"""A user's own files: folders of images, and CSV and parquet tables, read in portions."""

from collections.abc import Iterator, Sequence
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


def find_files(data: Path) -> Files:
    """The images or tables below a folder, or a single file. Hidden files and folders, such as
    the copies in `.ipynb_checkpoints`, are no data."""
    if not data.is_dir() and not data.is_file():  # reading a pipe would block
        raise DataError(f"{data} is not a file or folder: name a folder of images or a table")
    paths = [data]
    if data.is_dir():
        paths = sorted(path for path in data.rglob("*") if path.is_file())
        hidden = {path for path in paths if _is_hidden(path.relative_to(data))}
        paths = [path for path in paths if path not in hidden]
    images = [path for path in paths if path.suffix.lower() in IMAGES]
    tables = [path for path in paths if path.suffix.lower() in TABLES]
    if images and tables:
        raise DataError(
            f"{data} holds images ({images[0].name}) and tables ({tables[0].name}): separate them"
        )
    if not images and not tables:
        raise DataError(
            f"{data} holds neither images ({', '.join(IMAGES)}) nor tables ({', '.join(TABLES)})"
        )
    return Files(data, bool(images), images or tables)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def class_of(path: Path, root: Path) -> str | None:
    """The folder of an image below the root; None if it is in the root itself."""
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else None


def class_folders(files: Files) -> list[str]:
    """The folders below the root. Raise if one of them holds folders instead of images."""
    flat = {
        path.relative_to(files.root).parts[0] for path in files.paths if _depth(path, files) < 3
    }
    for path in files.paths:
        outer = path.relative_to(files.root).parts[0]
        if outer not in flat:
            folder = files.root / outer
            raise DataError(
                f"{folder} holds no images but folders such as {path.parent.name}: name the folder "
                f"whose folders are the classes, such as {folder}"
            )
    return sorted({str(class_of(path, files.root)) for path in files.paths} - {"None"})


def _depth(path: Path, files: Files) -> int:
    return len(path.relative_to(files.root).parts)


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


def read_table(path: Path, label: str) -> Iterator[Any]:
    """Yield the rows of a file as pandas frames, numbered from 0 to the end of the file.

    The column `label`, if any, is read as text; only empty cells have no label.
    """
    read = _read_csv if path.suffix.lower() == ".csv" else _read_parquet
    try:
        yield from read(path, label)
    except DataError:
        raise
    except Exception as error:  # pyarrow raises all kinds of errors for damaged files
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}") from None


def _read_csv(path: Path, label: str) -> Iterator[Any]:
    import pandas

    first = {"header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
    header = pandas.read_csv(path, **first).iloc[0]
    _refuse_twice(path, header)
    for separator in ";\t|" if len(header) == 1 else "":
        if separator in header[0]:
            raise DataError(
                f"{path} is separated by {separator!r} instead of commas: save it with commas"
            )
    # to pandas, "NA" and "None" are no classes but missing
    words: Any = {"keep_default_na": False, "na_values": [""]} if label else {}
    for frame in pandas.read_csv(path, dtype={label: str}, chunksize=ROWS, **words):
        # pandas takes the first fields for names of the rows, which shifts the columns
        if not isinstance(frame.index, pandas.RangeIndex):
            raise DataError(f"{path} has rows with more fields than its header has names")
        yield frame


def _read_parquet(path: Path, label: str) -> Iterator[Any]:
    import pandas

    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{path} needs pyarrow: pip install 'orderless[parquet]'") from None
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


def numbers(frame: Any, columns: Sequence[str], path: Path) -> list[np.ndarray]:
    """Columns of a frame as float64 `[B, D]` each, D = 1 if they hold no lists; all values must be
    numbers below LARGEST."""
    return [_numbers(frame, name, path) for name in columns]


def _numbers(frame: Any, name: str, path: Path) -> np.ndarray:
    if name not in frame:
        others = ", ".join(frame)
        guess = did_you_mean(name, frame)
        raise DataError(f"{path} has no column {name!r}{guess}; it has {others}")
    column = frame[name]
    try:
        if column.dtype.kind in "Mm":  # pandas would convert dates to nanoseconds
            raise TypeError
        lists = len(column) and isinstance(column.iloc[0], list | np.ndarray)
        values = np.stack(column.to_list()) if lists else column.to_numpy()[:, None]
        values = values.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"column {name!r} of {path} holds {_odd(column)}: choose other columns with --columns"
        ) from None
    beyond = np.argwhere(~(np.abs(values) < LARGEST))
    if len(beyond):
        line = frame.index[beyond[0][0]] + 2  # counted from 1, after the header
        raise DataError(
            f"{path} has no finite number in column {name!r}, line {line} (one beyond "
            f"{LARGEST:g} counts as infinite)"
        )
    return values


def _odd(column: Any) -> str:
    """What a column holds that is not a number."""
    if isinstance(column.iloc[0], list | np.ndarray):
        return "lists of different lengths, or of what is not a number"
    for value in column:
        try:
            float(value)
        except (TypeError, ValueError):
            return f"{str(value)[:40]!r}, which is not a number"
    return f"{str(column.iloc[0])[:40]!r}, which is not a number"
