"""Tiny data sets in the official formats."""

import gzip
import hashlib
import pickle
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from orderless_lab.scenarios import datasets

# The list in the appendix of the paper, in its order; CIFAR writes "keyboard" for the computer's.
SUPERCLASSES = {
    "aquatic mammals": ["beaver", "dolphin", "otter", "seal", "whale"],
    "fish": ["aquarium fish", "flatfish", "ray", "shark", "trout"],
    "flowers": ["orchid", "poppy", "rose", "sunflower", "tulip"],
    "food containers": ["bottle", "bowl", "can", "cup", "plate"],
    "fruit and vegetables": ["apple", "mushroom", "orange", "pear", "sweet pepper"],
    "household electrical devices": ["clock", "keyboard", "lamp", "telephone", "television"],
    "household furniture": ["bed", "chair", "couch", "table", "wardrobe"],
    "insects": ["bee", "beetle", "butterfly", "caterpillar", "cockroach"],
    "large carnivores": ["bear", "leopard", "lion", "tiger", "wolf"],
    "large man-made outdoor things": ["bridge", "castle", "house", "road", "skyscraper"],
    "large natural outdoor scenes": ["cloud", "forest", "mountain", "plain", "sea"],
    "large omnivores and herbivores": ["camel", "cattle", "chimpanzee", "elephant", "kangaroo"],
    "medium mammals": ["fox", "porcupine", "possum", "raccoon", "skunk"],
    "non-insect invertebrates": ["crab", "lobster", "snail", "spider", "worm"],
    "people": ["baby", "boy", "girl", "man", "woman"],
    "reptiles": ["crocodile", "dinosaur", "lizard", "snake", "turtle"],
    "small mammals": ["hamster", "mouse", "rabbit", "shrew", "squirrel"],
    "trees": ["maple tree", "oak tree", "palm tree", "pine tree", "willow tree"],
    "vehicles 1": ["bicycle", "bus", "motorcycle", "pickup truck", "train"],
    "vehicles 2": ["lawn mower", "rocket", "streetcar", "tank", "tractor"],
}


class Counts(NamedTuple):
    """A data set's root and how many images of each class it has."""

    root: Path
    train: list[int]
    test: list[int]


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_tiny_mnist(root: Path, patch: pytest.MonkeyPatch, *, zipped: bool = True) -> Counts:
    """MNIST with digit d in 4 + d training and 2 test images, its MD5s put in place."""
    random = np.random.default_rng(0)
    train, test = [4 + digit for digit in range(10)], [2] * 10
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    md5s = {}
    for prefix, counts in (("train", train), ("t10k", test)):
        labels = random.permutation(np.repeat(np.arange(10), counts))
        images = random.integers(0, 256, (len(labels), 28, 28))
        arrays = {"images-idx3": images, "labels-idx1": labels}
        for name, contents in ((f"{prefix}-{k}-ubyte", idx_bytes(v)) for k, v in arrays.items()):
            packed = gzip.compress(contents, mtime=0)
            md5s[name] = (hashlib.md5(packed).hexdigest(), hashlib.md5(contents).hexdigest())
            file = folder / (name + ".gz" if zipped else name)
            file.write_bytes(packed if zipped else contents)
    patch.setattr(datasets, "MNIST_MD5S", md5s)
    return Counts(root, train, test)


def write_tiny_cifar100(root: Path, patch: pytest.MonkeyPatch) -> Counts:
    """CIFAR-100 with 4 training and 2 test images of each class, its MD5s put in place."""
    random = np.random.default_rng(0)
    fine_names = sorted(name for group in SUPERCLASSES.values() for name in group)
    coarse_of = {n: c for c, group in enumerate(SUPERCLASSES.values()) for n in group}
    contents: dict[str, dict[bytes, object]] = {
        "meta": {
            b"fine_label_names": [n.replace(" ", "_").encode() for n in fine_names],
            b"coarse_label_names": [n.replace(" ", "_").encode() for n in SUPERCLASSES],
        }
    }
    for part, count in (("train", 4), ("test", 2)):
        fine = random.permutation(np.repeat(np.arange(100), count)).tolist()
        contents[part] = {
            b"fine_labels": fine,
            b"coarse_labels": [coarse_of[fine_names[label]] for label in fine],
            b"data": random.integers(0, 256, (len(fine), 3072)).astype(np.uint8),
        }
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for part, value in contents.items():
        (folder / part).write_bytes(pickle.dumps(value, protocol=4))
    md5s = {
        part: hashlib.md5((folder / part).read_bytes()).hexdigest()
        for part in ("train", "test", "meta")
    }
    patch.setattr(datasets, "CIFAR100_MD5S", md5s)
    return Counts(root, [4] * 100, [2] * 100)
