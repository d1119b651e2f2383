"""A user's own files: folders of images, or tables (see `tables.py`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, UserError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
TABLES = (".csv", ".parquet")


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
        paths = sorted(path for path in data.rglob("*") if _is_visible(path.relative_to(data)))
        paths = [path for path in paths if path.is_file()]
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
