"""More than two million samples on two processes, against whole numbers without any limit."""

import numpy as np
import pytest
import torch

import orderless as ol
from orderless.distributed import fit

SHARDS, ROWS, INPUTS, FEATURES = 32, 65_625, 64, 512  # 2,100,000 samples
COLUMNS = [0, 17, 100, 255, 256, 400, 511]


def empty():
    maps = ol.Ensemble(
        lambda: ol.features.RandomReLU(INPUTS, FEATURES, bias_scale=0.0), n=1, seed=0
    )
    return ol.ExactHead(maps, feature_limit=8.0, classes=10)


def whole_inputs(shard):
    """In units of 1/64: what the map's own grid of inputs has."""
    return np.random.default_rng(shard).integers(-256, 257, (ROWS, INPUTS))


def read(shard):
    x = torch.from_numpy(whole_inputs(shard)) / 64.0
    return x.float(), torch.arange(len(x)) % 10


@pytest.mark.sweep
def test_two_million_samples_are_summed_as_python_sums_integers():
    rb = fit(empty(), range(SHARDS), read, workers=2)
    assert rb.samples == SHARDS * ROWS > 2**20
    state = rb.state_dict()["sums"]
    assert state["gram"]["high"] is not None  # one word would not have been enough
    low, high = state["gram"]["low"][0], state["gram"]["high"][0]

    # The same features and sums in whole numbers: no float, no torch, no limit.
    weight = rb.particles[0].weight.double().numpy()[COLUMNS]
    unit = 2.0**-40
    whole = np.rint(weight / unit).astype(np.int64)
    assert (whole * unit == weight).all()
    totals = [[0] * len(COLUMNS) for _ in COLUMNS]
    for shard in range(SHARDS):
        products = whole_inputs(shard) @ whole.T  # in units of 2^-46, below 2^55
        # to the grid of 2^-13, halves to the even neighbour; nothing reaches the limit of 8
        scaled, rest = np.divmod(np.maximum(products, 0), 2**33)
        scaled += (rest > 2**32) | ((rest == 2**32) & (scaled % 2 == 1))
        scaled = np.minimum(scaled, 2**16)
        sums = scaled.T @ scaled  # 65,625 products below 2^32: below 2^49
        for i in range(len(COLUMNS)):
            for j in range(len(COLUMNS)):
                totals[i][j] += int(sums[i, j])
    for i, row in enumerate(COLUMNS):
        for j, column in enumerate(COLUMNS[: i + 1]):
            ours = int(low[row, column].item() * 2**26) + int(high[row, column]) * 2**49
            assert ours == totals[i][j], (row, column)
