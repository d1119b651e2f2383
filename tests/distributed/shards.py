"""A small problem in shards: what workers import."""

import os
import signal
from pathlib import Path

import torch
from tests.exact.toys import same_bits

import orderless as ol

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(1000, 6, generator=GENERATOR)
X[300:303] *= 4.0  # some features are clipped
Y = (X[:, 0] > 0).long() + (X[:, 1] * X[:, 2] > 0)


def empty():
    maps = ol.Ensemble(lambda: ol.features.RandomReLU(6, 16), n=2, seed=3)
    return ol.ExactHead(maps, feature_limit=4.0)


def whole():
    """What one machine makes of it all."""
    head = empty()
    head.update(X, Y)
    return head


def read(rows):
    return X[slice(*rows)], Y[slice(*rows)]


def cut(size):
    """Shards: where the rows of each begin and end."""
    return [(start, min(start + size, len(X))) for start in range(0, len(X), size)]


def die_once(where):
    """Kill this process, the first time that anybody comes here."""
    try:
        os.close(os.open(Path(where) / "killed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def read_and_die(shard):
    where, rows = shard
    if rows[0] > 300:
        die_once(where)
    return read(rows)


def always_die(shard):
    os.kill(os.getpid(), signal.SIGKILL)


def same(a, b):
    return same_bits(a, b, X[:50])
