"""A user's own files: folders of images, CSV and parquet tables, in portions that fit a memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import DataError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
TABLES = (".csv", ".parquet")
ROWS = 1 << 16  # of a table at a time
LARGEST = 1e100  # number in a table: its square is finite, too


class Files(NamedTuple):
    """All images or all tables below a folder, sorted by name, or a single file."""

    root: Path
    images: bool
    paths: list[Path]


def find_files(data: Path) -> Files:
    """Images or tables below a folder, or one table."""
    if not data.is_dir() and not data.is_file():  # a pipe would be waited for
        raise DataError(f"there is no {data}: name a folder of images, or a CSV or parquet file")
    paths = sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]
    images = [path for path in paths if path.suffix.lower() in IMAGES]
    tables = [path for path in paths if path.suffix.lower() in TABLES]
    if images and tables:
        raise DataError(f"{data} holds images ({images[0].name}) and tables ({tables[0].name})")
    if not images and not tables:
        raise DataError(
            f"{data} holds neither images ({', '.join(IMAGES)}) nor tables ({', '.join(TABLES)})"
        )
    return Files(data, bool(images), images or tables)


def check_output(out: Path, *inputs: Path) -> None:
    """Refuse to write over what is read."""
    if out.resolve() in {path.resolve() for path in inputs}:
        raise ValueError(f"--out {out} would write over what is read: name another file")


def label_of(path: Path, root: Path) -> str | None:
    """The folder of an image below the root; None where it lies in the root itself."""
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else None


def read_images(paths: Sequence[Path], size: int) -> Tensor:
    """In colour, at `size` x `size` pixels: uint8 `[B, 3, size, size]`."""
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
    """As RGB; Pillow itself would cut numbers of more than 8 bits off at 255."""
    if image.mode.startswith("I;16"):
        return image.point(lambda value: value / 256, "L").convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are numbers of 32 bits ({image.mode}): save it with 8 or 16")
    return image.convert("RGB")


def read_table(path: Path, label: str) -> Iterator[Any]:
    """Pandas frames of a file's rows; the label's column, where there is one, holds texts."""
    import pandas

    try:
        if path.suffix.lower() == ".csv":
            yield from pandas.read_csv(path, dtype={label: str}, chunksize=ROWS)
            return
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError:
            raise DataError(f"{path} needs pyarrow: pip install 'orderless[parquet]'") from None
        for batch in ParquetFile(path).iter_batches(batch_size=ROWS):
            frame = batch.to_pandas()
            if not frame.columns.is_unique:
                twice = frame.columns[frame.columns.duplicated()][0]
                raise DataError(f"{path} has two columns named {twice!r}: rename one")
            if label in frame:
                frame[label] = frame[label].map(str, na_action="ignore")
            yield frame
    except DataError:
        raise
    except Exception as error:  # pyarrow raises whatever a damaged file leads it to
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}") from None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def numbers(frame: Any, columns: Sequence[str], path: Path) -> np.ndarray:
    """Some columns of a frame as float64 `[B, columns]`; all must hold numbers below LARGEST."""
    missing = [name for name in columns if name not in frame]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(frame)}")
    found = np.empty((len(frame), len(columns)))
    for place, name in enumerate(columns):
        column = frame[name]
        try:
            if column.dtype.kind in "Mm":  # pandas would count nanoseconds
                raise TypeError
            found[:, place] = column.to_numpy(np.float64)
        except (TypeError, ValueError):
            odd = next((value for value in column if not _is_number(value)), column.iloc[0])
            raise DataError(
                f"column {name!r} of {path} holds {odd!r}, which is no number: leave it out with "
                "--columns"
            ) from None
    beyond = np.argwhere(~(np.abs(found) < LARGEST))
    if len(beyond):
        row, place = beyond[0]
        line = frame.index[row] + 2  # counted from 1, after the line of names
        raise DataError(
            f"{path} has no finite number in column {columns[place]!r}, line {line} (one beyond "
            f"{LARGEST:g} counts as infinite)"
        )
    return found
