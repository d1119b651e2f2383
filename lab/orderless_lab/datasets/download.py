"""Downloads, complete or absent, and archives."""

import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from orderless.errors import DataError
from orderless.io import write_atomically

from .formats import MD5

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in total or None if unknown)."""

_CHUNK = 1 << 18
_PATIENCE = 30.0  # seconds without a byte
_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


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
            content = _receive(url, destination.name, progress)
        except _NETWORK_ERRORS as error:
            reason = f"{url} failed with {error}"
            continue
        found = MD5(content).hexdigest()
        if found == md5:
            try:
                destination.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(destination, content)
            except OSError as error:
                raise _cannot_write(destination, error) from error
            return destination
        reason = f"the MD5 of what came from {url} is {found}, not {md5}"
    raise DataError(f"{destination.name} could not be downloaded: {reason}.")


def _receive(url: str, name: str, progress: Progress | None) -> bytes:
    """All bytes that an address sends."""
    request = urllib.request.Request(url, headers={"User-Agent": "orderless"})
    content = bytearray()
    with urllib.request.urlopen(request, timeout=_PATIENCE) as response:
        length = response.headers.get("Content-Length")
        total = None if length is None else int(length)
        while chunk := response.read(_CHUNK):
            content += chunk
            if progress is not None:
                progress(name, len(content), total)
    if total is not None and len(content) < total:
        raise ConnectionError("the connection was lost")
    return bytes(content)


def _cannot_write(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be written: {error.strerror or error}.")


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar archive, whose MD5 was checked, into `folder`: all of it, and nowhere else (PEP
    706), or nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar, TemporaryDirectory(dir=folder, prefix=".") as place:
            tar.extractall(place, filter="data")
            shutil.copytree(place, folder, dirs_exist_ok=True)
    except tarfile.TarError as error:
        raise DataError(f"{archive} cannot be unpacked: {error}.") from error
    except OSError as error:
        raise _cannot_write(folder, error) from error
