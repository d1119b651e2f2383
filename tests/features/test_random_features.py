"""Random feature maps: exact to the bit, different per particle, refusing what they cannot read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import orderless as ol
from orderless.features import DeadLeaves, RandomConvolution, RandomReLU
from orderless.features.exact import natural_covariance

MAPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (lambda: RandomReLU(50, 64), (50,)),
    "relu in float64": (lambda: RandomReLU(5000, 16), (5000,)),
    "convolution": (lambda: RandomConvolution(3, 12, 20, mirror=False), (3, 12, 12)),
    "stride": (lambda: RandomConvolution(3, 12, 4, stride=2), (3, 12, 12)),
    "leaves": (lambda: DeadLeaves(1, 12, 24, kernel_size=4), (1, 12, 12)),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_sample_has_the_same_features_alone_in_any_batch_and_at_any_place(name: str) -> None:
    make, shape = MAPS[name]
    features = make()
    x = torch.randn(40, *shape)
    whole = features(x)
    order = torch.randperm(len(x))
    assert torch.equal(features(x[order]), whole[order])
    for size in (1, 7):
        assert torch.equal(torch.cat([features(part) for part in x.split(size)]), whole)


@pytest.mark.parametrize("name", MAPS)
def test_an_ensemble_gives_each_particle_what_it_gives_alone(name: str) -> None:
    make, shape = MAPS[name]
    ensemble = ol.Ensemble(make, n=3, seed=5)
    assert not any(p.requires_grad for p in ensemble.parameters())
    x = torch.randn(10, *shape)
    together = ensemble(x)
    for particle in range(3):
        assert torch.equal(together[particle], ensemble[particle](x))
    assert not torch.equal(together[0], together[1])


def test_relu_features_are_the_exact_sum_of_the_rounded_numbers() -> None:
    """Python's integers have no rounding: the float32 product must equal them, not approximate."""
    features = RandomReLU(784, 8, bias_scale=0.3)
    x = torch.rand(5, 784) * 9 - 4.5  # some beyond the limit of 4
    rounded = (x.double() * 64).round().clamp(-256, 256).numpy()
    for row in range(8):
        weight, bias = features.weight[row].double(), features.bias[row].double()
        unit = 2.0 ** np.floor(np.log2(weight[weight != 0].abs().min().item()))
        while not torch.equal((weight / unit).round(), weight / unit):
            unit /= 2
        whole = [int(w) for w in (weight / unit).tolist()]
        for sample in range(5):
            total = sum(w * int(v) for w, v in zip(whole, rounded[sample], strict=True))
            expected = max(total * unit / 64 + bias.item(), 0.0)
            assert features(x)[sample, row].item() == expected


def test_rounded_weights_keep_their_distribution() -> None:
    weight = RandomReLU(784, 500).weight
    assert abs(weight.std().item() * 28 - 1) < 0.01  # 392,000 draws: one per cent is 9 sigma
    assert abs(weight.mean().item() * 28) < 0.01


def test_convolution_equals_a_plain_loop_over_patches() -> None:
    """Up to the grids: patches are rounded to 1/32 and responses to 2^-12."""
    torch.manual_seed(1)
    features = RandomConvolution(3, 9, 6, kernel_size=4, regions=2, mirror=False)
    x = torch.rand(2, 3, 9, 9) * 2
    weight, expected = features.weight.double() / 4096, torch.zeros(2, 4, 6, dtype=torch.float64)
    sizes = torch.zeros(4)
    for i in range(6):
        for j in range(6):
            patch = x[:, :, i : i + 4, j : j + 4].double().flatten(1)
            patch = patch - patch.mean(1, keepdim=True)
            patch = patch / (patch.square().mean(1, keepdim=True) + 0.1).sqrt()
            region = 2 * (i >= 3) + (j >= 3)
            expected[:, region] += (patch @ weight.T - 0.25).clamp(min=0)
            sizes[region] += 1
    expected /= sizes.view(1, 4, 1)
    assert torch.allclose(features(x).double(), expected.flatten(1), atol=0.03)


def test_filters_respond_with_unit_variance_to_natural_covariance() -> None:
    features = RandomConvolution(3, 32, 50)
    covariance = natural_covariance(3, 6) + 0.1 * torch.eye(108, dtype=torch.float64)
    weight = features.weight.double() / 4096
    variance = (weight @ covariance * weight).sum(1)
    assert torch.allclose(variance, torch.ones_like(variance), atol=0.02)  # weights are rounded


def test_brightness_and_contrast_of_an_image_hardly_matter() -> None:
    torch.manual_seed(2)
    features = RandomConvolution(3, 12, 30)
    x = 2 * torch.randn(4, 3, 12, 12).clamp(-1, 1)  # so that CONTRAST hardly matters
    plain, changed = features(x), features(x * 1.2 + 1.0)
    assert (plain - changed).abs().max() < 0.1 * plain.std()


def test_wrong_sizes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"one of shape \[50\]: use x\[None\]"):
        RandomReLU(50, 3)(torch.zeros(50))
    with pytest.raises(ValueError, match="50 values, got 49"):
        RandomReLU(50, 3)(torch.zeros(2, 49))
    with pytest.raises(ValueError, match=r"\(3, 12, 12\), got \(1, 12, 12\)"):
        RandomConvolution(3, 12, 2)(torch.zeros(2, 1, 12, 12))
    with pytest.raises(ValueError, match="power of two"):
        RandomReLU(5, 3, input_limit=3.0)
    with pytest.raises(ValueError, match="places"):
        RandomConvolution(3, 4, 2)
    with pytest.raises(ValueError, match="16 x 16"):
        RandomConvolution(3, 64, 2, regions=2)
