"""The intents data sets: download, conversion to CSV, and reading."""

import csv
import io
import json
from pathlib import Path
from typing import NamedTuple

from orderless.io import write_atomically

from .catalogue import INTENTS_ATTRIBUTION, INTENTS_MD5S, INTENTS_SOURCES
from .download import Progress, download
from .formats import damaged, md5_of


class Texts(NamedTuple):
    """Sentences and the names of their intents."""

    texts: list[str]
    labels: list[str]


def read_texts(file: Path) -> Texts:
    """Read one of the CSV files, after checking its edition."""
    check_edition(file)
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return Texts([row["text"] for row in rows], [row["label"] for row in rows])


def check_edition(file: Path) -> str:
    """The edition of a file; DataError if it is unknown."""
    found = md5_of(file)
    for edition, md5 in zip(("as published", "small"), INTENTS_MD5S[file.name], strict=True):
        if found == md5:
            return edition
    raise damaged(file, f"its MD5 {found} is that of no known edition", "intents")


def fetch_intents(folder: Path, progress: Progress | None = None) -> None:
    """Download the official files and write them as CSV, with their authors and licences."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (url, md5) in INTENTS_SOURCES.items():
        original = folder / f"{name}.original"
        download([url], original, md5, progress=progress)
        write_converted(original, folder)
        original.unlink()
    write_atomically(folder / "README.txt", INTENTS_ATTRIBUTION.encode())


def write_converted(original: Path, folder: Path) -> None:
    """Convert one of the official files to the CSV files that `load_intents` reads."""
    text = original.read_text(encoding="utf-8")
    name = original.name.removesuffix(".original")
    if name == "clinc.json":
        parts = json.loads(text)
        rows = {f"clinc_{part}.csv": parts[part] for part in ("train", "test")}
    else:
        read = csv.DictReader(io.StringIO(text, newline=""))
        rows = {name: [(row["text"], row["category"]) for row in read]}
    for file, pairs in rows.items():
        written = io.StringIO(newline="")
        csv.writer(written, lineterminator="\n").writerows([("text", "label"), *pairs])
        write_atomically(folder / file, written.getvalue().encode())
