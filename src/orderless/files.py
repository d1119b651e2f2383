"""Read a user's own files: folders of images, and CSV and parquet tables in chunks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import DataError, UserError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
TABLES = (".csv", ".parquet")
ROWS = 1 << 16  # of a table at a time
LARGEST = 1e100  # number in a table, whose square is finite


class Files(NamedTuple):
    """All images or all tables below a folder, sorted by name, or a single file."""

    root: Path
    images: bool
    paths: list[Path]


def find_files(data: Path) -> Files:
    """The images or tables below a folder, or a single file."""
    if not data.is_dir() and not data.is_file():  # reading a pipe would block
        raise DataError(f"{data} is not a file or folder: name a folder of images or a table")
    paths = sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]
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


def check_output(out: Path, *inputs: Path) -> None:
    """Refuse to overwrite an input file or a folder."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: name a file")
    if out.resolve() in {path.resolve() for path in inputs}:
        raise UserError(f"--out {out} would overwrite an input file: name another file")


def label_of(path: Path, root: Path) -> str | None:
    """The folder of an image below the root; None if it is in the root itself."""
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else None


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
    import pandas

    try:
        if path.suffix.lower() == ".csv":
            first = {"header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
            _refuse_twice(path, pandas.read_csv(path, **first).iloc[0])
            # to pandas, "NA" and "None" are no classes but missing
            words: Any = {"keep_default_na": False, "na_values": [""]} if label else {}
            for frame in pandas.read_csv(path, dtype={label: str}, chunksize=ROWS, **words):
                # pandas takes the first fields for names of the rows, which shifts the columns
                if not isinstance(frame.index, pandas.RangeIndex):
                    raise DataError(f"{path} has rows with more fields than its header has names")
                yield frame
            return
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
    except DataError:
        raise
    except Exception as error:  # pyarrow raises all kinds of errors for damaged files
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}") from None


def _refuse_twice(path: Path, names: Any) -> None:
    """Refuse two columns of one name: pandas would rename one, and learn from a second label."""
    twice = names[names.duplicated() & (names != "")]
    if len(twice):
        raise DataError(f"{path} has two columns named {list(twice)[0]!r}: rename one")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def numbers(frame: Any, columns: Sequence[str], path: Path) -> np.ndarray:
    """Columns of a frame as float64 `[B, columns]`; all values must be numbers below LARGEST."""
    missing = [name for name in columns if name not in frame]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(frame)}")
    found = np.empty((len(frame), len(columns)))
    for place, name in enumerate(columns):
        column = frame[name]
        try:
            if column.dtype.kind in "Mm":  # pandas would convert dates to nanoseconds
                raise TypeError
            found[:, place] = column.to_numpy(np.float64)
        except (TypeError, ValueError):
            odd = next((value for value in column if not _is_number(value)), column.iloc[0])
            raise DataError(
                f"column {name!r} of {path} holds {odd!r}, which is not a number: choose other "
                "columns with --columns"
            ) from None
    beyond = np.argwhere(~(np.abs(found) < LARGEST))
    if len(beyond):
        row, place = beyond[0]
        line = frame.index[row] + 2  # counted from 1, after the header
        raise DataError(
            f"{path} has no finite number in column {columns[place]!r}, line {line} (one beyond "
            f"{LARGEST:g} counts as infinite)"
        )
    return found
