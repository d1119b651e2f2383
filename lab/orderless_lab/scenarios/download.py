"""Downloads that can be interrupted at any time, and archives that cannot leave their folder.

Bytes are written to NAME.part. A complete file with the right MD5 is renamed to NAME in one atomic
step. An interrupted download is resumed from the bytes in NAME.part.
"""

import http.client
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from orderless.errors import DataError

from .formats import md5_of

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in total or None if unknown)."""

_CHUNK = 1 << 18
_PATIENCE = 30.0  # seconds without a byte
_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)

# Errors of `tarfile` for a broken archive; the last two for links to nothing or to themselves.
_UNREADABLE = (tarfile.TarError, EOFError, ValueError, KeyError, RecursionError)


def download(
    urls: Sequence[str],
    destination: Path,
    md5: str,
    *,
    progress: Progress | None = None,
    attempts: int = 3,
) -> Path:
    """Fetch one file from the first of `urls` that works, and check its MD5.

    Each address is tried `attempts` times, and each attempt resumes the last one. If all fail,
    DESTINATION.part is kept for the next call; if the MD5 is wrong, it is removed.
    """
    part = destination.with_name(destination.name + ".part")
    reason = "no address was given"
    for url in urls:
        for _ in range(attempts):
            resumed = part.exists()
            try:
                destination.parent.mkdir(parents=True, exist_ok=True)
                if not _continue(url, part, destination.name, progress):
                    reason = f"the connection to {url} was lost"
                    continue
                found = md5_of(part)
                if found == md5:
                    os.replace(part, destination)
                    return destination
                part.unlink()
            except _NETWORK_ERRORS as error:
                reason = f"{url} failed with {error}"
                continue
            except OSError as error:
                raise _cannot_write(destination, error) from error
            reason = f"the MD5 of what came from {url} is {found}, not {md5}"
            if not resumed:  # the whole file came from this address: another attempt is useless
                break
    kept = "; the part that arrived is kept, and the next attempt resumes from it"
    raise DataError(
        f"{destination.name} could not be downloaded: {reason}{kept if part.exists() else ''}."
    )


def _continue(url: str, part: Path, name: str, progress: Progress | None) -> bool:
    """Append the missing bytes to `part`; return whether it is now complete."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "orderless"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        response = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and done:  # no bytes are missing: complete, or another file
                return True
        raise
    with response:
        rest = response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
        if response.status != 206 or not rest:
            done = 0  # the server sends the whole file
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        with part.open("ab" if done else "wb") as stream:
            while chunk := _read(response):
                stream.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(name, done, total)
            stream.flush()
            os.fsync(stream.fileno())
    return total is None or done == total


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_CHUNK)
    except OSError as error:  # not to be confused with an OSError of the disk
        raise ConnectionError(str(error)) from error


def _cannot_write(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be written: {error.strerror or error}.")


def extract(archive: Path, folder: Path, md5s: Mapping[str, str]) -> None:
    """Unpack the files named in `md5s` from a tar archive into `folder`, each checked by its MD5.

    Nothing is written there unless the whole archive can be unpacked safely (PEP 706) and every
    MD5 is right.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar, TemporaryDirectory(dir=folder, prefix=".") as place:
            tar.extractall(place, filter="data")
            for name, md5 in md5s.items():
                file = Path(place, name)
                if file.is_symlink() or not file.is_file():
                    raise DataError(f"{archive} does not contain {name}.")
                if (found := md5_of(file)) != md5:
                    raise DataError(f"{name} in {archive} has MD5 {found}, not {md5}.")
            for name in md5s:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(place, name), folder / name)
    except tarfile.FilterError as error:
        raise DataError(f"{archive} is refused: {error}.") from error
    except _UNREADABLE as error:
        raise DataError(f"{archive} cannot be unpacked: {error}.") from error
    except OSError as error:
        raise _cannot_write(folder, error) from error
