"""Downloads, complete or absent, and archives that cannot leave their folder."""

import http.client
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from orderless.errors import DataError
from orderless.io import new_file

from .formats import MD5, md5_of

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in total or None if unknown)."""

_CHUNK = 1 << 18
_PATIENCE = 30.0  # seconds without a byte
_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)

# Errors of `tarfile` for a broken archive; the last two for links to nothing or to themselves.
_UNREADABLE = (tarfile.TarError, EOFError, ValueError, KeyError, RecursionError)


class _WrongBytes(Exception):
    """What came is not the file that was asked for."""


def download(
    urls: Sequence[str],
    destination: Path,
    md5: str,
    *,
    progress: Progress | None = None,
    attempts: int = 3,
) -> Path:
    """Fetch one file from the first of `urls` that works, and check its MD5.

    Each address is tried `attempts` times.
    """
    reason = "no address was given"
    for url in [url for url in urls for _ in range(attempts)]:
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
            with new_file(destination) as file:
                found = _copy(url, file, destination.name, progress)
                if found != md5:
                    raise _WrongBytes(f"the MD5 of what came from {url} is {found}, not {md5}")
            return destination
        except _NETWORK_ERRORS as error:
            reason = f"{url} failed with {error}"
        except _WrongBytes as error:
            reason = str(error)
        except OSError as error:
            raise _cannot_write(destination, error) from error
    raise DataError(f"{destination.name} could not be downloaded: {reason}.")


def _copy(url: str, file: IO[bytes], name: str, progress: Progress | None) -> str:
    """Copy what an address sends to a file; returns its MD5."""
    request = urllib.request.Request(url, headers={"User-Agent": "orderless"})
    digest = MD5()
    done = 0
    with urllib.request.urlopen(request, timeout=_PATIENCE) as response:
        length = response.headers.get("Content-Length")
        while chunk := _read(response):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(name, done, None if length is None else int(length))
    return digest.hexdigest()


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
