"""The study of merging: its formula, written out for one layer; and that the order is gone."""

import pytest
import torch
from torch import nn


def _linear(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 3))


@pytest.fixture
def blocks(study):
    networks = [_linear(seed) for seed in (1, 2, 3)]
    inputs = [torch.randn(20, 5) for _ in networks]
    grams = [study.input_moments(n, x) for n, x in zip(networks, inputs, strict=True)]
    return networks, inputs, grams


@pytest.mark.parametrize("anchor", ["start", "sum"])
def test_a_layer_is_merged_by_the_formula(study, blocks, anchor):
    networks, inputs, grams = blocks
    start = _linear(0)
    merged = study.merged(start, networks, grams)[anchor]["1/10"]
    each = [study.matrix(n[0]) for n in networks]
    a = [torch.cat([x, torch.ones(20, 1)], 1).double() for x in inputs]
    g = [x.T @ x for x in a]
    p_0 = 0.1 * sum(g).diagonal().mean()
    w_0 = study.matrix(start[0])
    pulled = w_0 if anchor == "start" else w_0 + sum(w - w_0 for w in each)
    cross = p_0 * pulled + sum(m @ w for m, w in zip(g, each, strict=True))
    expected = torch.linalg.solve(sum(g) + p_0 * torch.eye(6).double(), cross)
    # the merged network is float32
    torch.testing.assert_close(study.matrix(merged[0]), expected, rtol=1e-5, atol=1e-6)


def test_inputs_of_a_convolution_are_its_patches(study):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2))
    x = torch.randn(4, 2, 7, 7)
    gram = study.input_moments(network, x)["0"]
    weights = study.matrix(network[0])
    # sum |W^T a|^2 over patches = sum of the squared outputs
    torch.testing.assert_close(
        torch.trace(weights.T @ gram @ weights),
        network(x).double().square().sum(),
        rtol=1e-5,
        atol=0,
    )


def test_the_order_of_the_blocks_has_no_effect_up_to_rounding(study, blocks):
    networks, _, grams = blocks
    forward = study.merged(_linear(0), networks, grams)["sum"]["1/10"]
    backward = study.merged(_linear(0), networks[::-1], grams[::-1])["sum"]["1/10"]
    for a, b in zip(forward.parameters(), backward.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
