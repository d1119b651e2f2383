"""A small problem in shards: what workers import."""

import os
import signal
from pathlib import Path

import torch
from tests.exact.blobs import same_state

import orderless as ol

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(1000, 6, generator=GENERATOR)
X[300:303] *= 4.0  # some features are clipped
Y = (X[:, 0] > 0).long() + (X[:, 1] * X[:, 2] > 0)


def make_filter(**options):
    maps = ol.Ensemble(lambda: ol.features.RandomReLU(6, 16), n=2, seed=3)
    return ol.ExactHead(maps, feature_limit=4.0, **options)


def whole(make=make_filter):
    """What one machine makes of it all."""
    rb = make()
    rb.update(X, Y)
    return rb


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


def same(a, b):
    """Every bit of the state, and what is read off it."""
    ours, theirs = a.state_dict(), b.state_dict()
    assert ours["fingerprint"] == theirs["fingerprint"]
    ours, theirs = ours["sums"], theirs["sums"]
    assert ours.keys() == theirs.keys() and ours["clipped"] > 0
    assert same_state(ours, theirs)
    assert torch.equal(a.predict(X[:50]), b.predict(X[:50]))
    assert torch.equal(a.log_evidence, b.log_evidence)
    return True
