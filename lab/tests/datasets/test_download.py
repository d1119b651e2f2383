import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from orderless_lab.datasets import DataError
from orderless_lab.datasets import load as datasets
from orderless_lab.datasets.download import download, extract

CONTENTS = os.urandom(1_000_000)
MD5 = hashlib.md5(CONTENTS).hexdigest()


class Server:
    """A web server on this machine: `files` by path; `break_after` bytes it hangs up, once each."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/file": CONTENTS}
        self.break_after: list[int] = []
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(handler.path)
        body = self.files.get(handler.path)
        if body is None:
            return handler.send_error(404)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        end = self.break_after.pop(0) if self.break_after else len(body)
        handler.wfile.write(body[:end])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_download_shows_progress_and_never_a_half_file_under_its_name(server, tmp_path):
    target = tmp_path / "new" / "file"
    seen = []

    def progress(name, done, total):
        assert not target.exists() and name == "file"
        seen.append((done, total))

    assert download([server.url + "/file"], target, MD5, progress=progress) == target
    assert target.read_bytes() == CONTENTS
    assert seen == sorted(seen) and seen[-1] == (len(CONTENTS), len(CONTENTS)) and len(seen) > 1
    assert [file.name for file in target.parent.iterdir()] == ["file"]


def test_a_broken_connection_is_tried_again_and_leaves_nothing(server, tmp_path):
    server.break_after = [100_000, 200_000]
    download([server.url + "/file"], tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENTS and len(server.requests) == 3
    server.break_after = [100_000]
    with pytest.raises(DataError, match="other could not be downloaded"):
        download([server.url + "/file"], tmp_path / "other", MD5, attempts=1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_wrong_md5_leaves_nothing_behind(server, tmp_path):
    with pytest.raises(DataError, match=f"{MD5}, not 0123"):
        download([server.url + "/file"], tmp_path / "file", "0123")
    assert list(tmp_path.iterdir()) == []


def test_the_second_mirror_is_asked_when_the_first_fails(server, tmp_path):
    server.files["/wrong"] = b"something else"
    urls = [server.url + path for path in ("/absent", "/wrong", "/file")]
    download(urls, tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == CONTENTS


def test_no_network_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="could not be downloaded") as error:
        download(["http://127.0.0.1:9/file"], tmp_path / "file", MD5)  # nothing listens there
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_made_is_one_sentence(server, tmp_path):
    (tmp_path / "occupied").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        download([server.url + "/file"], tmp_path / "occupied" / "file", MD5)


# Whole data sets


def test_fetch_downloads_mnist_once_and_repairs_what_is_damaged(
    server, tiny_mnist, tmp_path, monkeypatch
):
    source = tiny_mnist.root / "MNIST" / "raw"
    for file in source.iterdir():
        server.files["/mnist/" + file.name] = file.read_bytes()
    monkeypatch.setattr(datasets, "MNIST_MIRRORS", (server.url + "/mnist/",))
    root = tmp_path / "fetched"
    assert datasets.fetch("mnist", root) == root / "MNIST" / "raw"
    assert all(entry.ok for entry in datasets.check("mnist", root))
    assert len(server.requests) == 4
    datasets.fetch("mnist", root)
    assert len(server.requests) == 4

    damaged = root / "MNIST" / "raw" / "train-labels-idx1-ubyte"  # raw files are read first
    damaged.write_bytes(b"not labels")
    datasets.fetch("mnist", root)
    assert server.requests[4:] == [f"/mnist/{damaged.name}.gz"]
    datasets.load_mnist(root)


def test_fetch_downloads_and_unpacks_cifar100(server, tiny_cifar100, tmp_path, monkeypatch):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(tiny_cifar100.root / "cifar-100-python", arcname="cifar-100-python")
    server.files["/cifar.tar.gz"] = archive.getvalue()
    server.break_after = [len(archive.getvalue()) // 2]
    monkeypatch.setattr(datasets, "CIFAR100_URLS", (server.url + "/cifar.tar.gz",))
    md5 = hashlib.md5(archive.getvalue()).hexdigest()
    monkeypatch.setattr(datasets, "CIFAR100_ARCHIVE_MD5", md5)
    root = tmp_path / "fetched"
    datasets.fetch("cifar100", root)
    assert datasets.load_cifar100(root).fine.bincount().tolist() == [4] * 100
    assert len(server.requests) == 2

    (root / "cifar-100-python" / "meta").write_bytes(b"")
    datasets.fetch("cifar100", root)  # from the archive that is there
    assert all(entry.ok for entry in datasets.check("cifar100", root))
    assert len(server.requests) == 2


def test_fetching_the_embedded_data_needs_no_network():
    assert datasets.fetch("mnist-5k").name == "mnist_5k.csv.gz"


# Archives


def test_an_archive_cannot_leave_its_folder(tmp_path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("good", "../evil"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(DataError, match="cannot be unpacked"):
        extract(archive, tmp_path / "folder")
    assert not (tmp_path / "evil").exists() and not list((tmp_path / "folder").iterdir())
    archive.write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be unpacked"):
        extract(archive, tmp_path / "folder")
