"""Data for the tests of scenarios: tiny files in the official formats, and the real ones.

`mnist` and `cifar100` are the real data sets where they are on this machine, else tiny ones.
Nothing of the package is imported before a test runs: the conftest.py of the checkout decides first
whether Triton's kernels are compiled or interpreted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lab.tests.toys import Counts


def _root_of(name: str) -> Path | None:
    from orderless_lab.datasets import load as datasets

    try:
        return datasets._complete_root(name, None)
    except datasets.DataError:
        return None


@pytest.fixture
def superclasses() -> dict[str, list[str]]:
    from lab.tests.toys import SUPERCLASSES

    return SUPERCLASSES


@pytest.fixture
def tiny_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counts:
    from lab.tests.toys import write_tiny_mnist

    return write_tiny_mnist(tmp_path, monkeypatch)


@pytest.fixture
def tiny_cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counts:
    from lab.tests.toys import write_tiny_cifar100

    return write_tiny_cifar100(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counts]:
    from lab.tests.toys import Counts, write_tiny_mnist

    root = _root_of("mnist")
    if root is not None:
        # Known of MNIST since its publication.
        train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
        yield Counts(root, train, test)
    else:
        with pytest.MonkeyPatch.context() as patch:
            yield write_tiny_mnist(tmp_path_factory.mktemp("mnist"), patch)


@pytest.fixture(scope="module")
def cifar100(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counts]:
    from lab.tests.toys import Counts, write_tiny_cifar100

    root = _root_of("cifar100")
    if root is not None:
        yield Counts(root, [500] * 100, [100] * 100)
    else:
        with pytest.MonkeyPatch.context() as patch:
            yield write_tiny_cifar100(tmp_path_factory.mktemp("cifar100"), patch)
