"""The data sets: find, check, fetch and load them."""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

if TYPE_CHECKING:
    from orderless.errors import DataError

    from .catalogue import DATASETS
    from .load import check, fetch, find, load_cifar100, load_intents, load_mnist, load_mnist_5k

__all__ = [
    "DATASETS", "DataError", "check", "fetch", "find", "load_cifar100", "load_intents",
    "load_mnist", "load_mnist_5k",
]  # fmt: skip

__getattr__, __dir__ = on_first_use(__name__)
