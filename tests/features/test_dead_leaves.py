"""Dead leaves: the same filters and features on every machine, and the same for mirror images."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from orderless.features import DeadLeaves, dead_leaves
from orderless.features.exact import normalized

# of `torch.manual_seed(0); DeadLeaves(3, 32, 256).weight`
SHA256 = "31d2e56e1383e619ea5eb119915ab11a34f74d9ff00ff8c652efac301568abd0"


def small() -> DeadLeaves:
    torch.manual_seed(0)
    return DeadLeaves(1, 12, 24, kernel_size=4)


@pytest.fixture(scope="module")
def features() -> DeadLeaves:
    return small()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(30, 1, 12, 12)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_the_dictionary_is_the_same_whatever_the_processor_can_do(capability: str) -> None:
    if capability == "avx512" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this processor has no AVX-512")
    script = (
        "import hashlib, torch; from orderless.features import DeadLeaves; torch.manual_seed(0); "
        "print(hashlib.sha256(DeadLeaves(3, 32, 256).weight.numpy().tobytes()).hexdigest())"
    )
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    if capability == "default":  # MKL too, and another number of threads
        environment |= {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OMP_NUM_THREADS": "2"}
    printed = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == SHA256


def test_an_image_and_its_mirror_image_have_the_same_features(
    features: DeadLeaves, images: torch.Tensor
) -> None:
    found = features(images)
    assert torch.equal(features(images.flip(3)), found)
    assert not torch.allclose(features(images.flip(2)), found)


@pytest.mark.slow
def test_patches_are_rounded_as_ieee_754_says_however_many_there_are() -> None:
    """numpy takes the processor's root, which is correct; MKL's in float32 is not."""
    draw = torch.Generator().manual_seed(0)
    whole = torch.randint(-256, 257, (400_000, 27), generator=draw).float()
    count, values = np.float32(1.0 / 27), whole.numpy()
    mean = values.sum(1, keepdims=True) * count
    variance = (values * values).sum(1, keepdims=True) * count - mean * mean
    variance = np.maximum(variance, np.float32(0)) / np.float32(64.0**2)
    scaled = (values - mean) / np.float32(64.0) / np.sqrt(variance + np.float32(0.1))
    expected = np.clip(np.round(scaled * np.float32(32.0)), -256, 256) / np.float32(32.0)
    together = normalized(whole, 1.0 / 64.0)
    assert np.array_equal(together.numpy(), expected)
    alone = torch.cat([normalized(part, 1.0 / 64.0) for part in whole[:500].split(1)])
    assert torch.equal(alone, together[:500])


def test_features_are_the_exact_sums_of_the_rounded_numbers(
    features: DeadLeaves, images: torch.Tensor
) -> None:
    """numpy's integers have no rounding: pooled responses must equal theirs, not approximate."""
    patches = features._patches(images[:3]).double().numpy() * 32  # whole numbers
    mirrored = features._patches(images[:3].flip(3)).double().numpy() * 32
    assert np.array_equal(patches, np.rint(patches))
    fine = 2.0**24  # every row's unit is larger
    weight = (features.weight.double().numpy() * fine).astype(object)
    expected = np.zeros((3, 4, 48))
    for image in range(3):
        for rows in (patches[image], mirrored[image]):
            # 81 places: a Python integer each, rounded half to even on the grid of 2^-12
            for place, row in enumerate(rows):
                total = weight @ np.array([int(value) for value in row], dtype=object)
                response = np.array([round(value / (32 * fine)) for value in total], dtype=float)
                region = 2 * (place // 9 >= 5) + (place % 9 >= 5)
                both = np.concatenate([response - 1024, -response - 1024])
                expected[image, region] += np.clip(both, 0, 65536)
    sizes = np.array([25, 20, 20, 16]).reshape(1, 4, 1) * 2 * 4096.0
    assert np.array_equal(
        features(images[:3]).numpy(), (expected / sizes).reshape(3, -1).astype("f4")
    )


def test_filters_are_whitened_patches_of_length_one() -> None:
    """w = Sigma^-1 q / |Sigma^-1/2 q|, against LAPACK's eigenvectors."""
    torch.manual_seed(3)
    state = torch.get_rng_state()
    features = DeadLeaves(1, 12, 50, kernel_size=5)
    torch.set_rng_state(state)
    patches, covariance = features._draw()
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * values.rsqrt()) @ vectors.T
    whitened = torch.nn.functional.normalize(patches @ root, dim=1)
    weight = features.weight.double() / 4096
    # 25 weights share 2^16 units
    assert torch.allclose(weight, whitened @ root, atol=weight.abs().sum(1).max().item() / 2**16)
    variance = (weight @ covariance * weight).sum(1)
    assert torch.allclose(variance, torch.ones_like(variance), atol=1e-3)


def test_leaves_have_the_sizes_of_a_power_law() -> None:
    """Neighbouring pixels agree unless an edge lies between them, at any distance more rarely."""
    torch.manual_seed(5)
    images = dead_leaves(200, 32).float()
    assert images.shape == (200, 3, 32, 32)
    assert 118 < images.mean() < 138  # colours are uniform on 0..255; 200 images, a few leaves each
    same = [(images[..., d:] == images[..., :-d]).all(1).double().mean().item() for d in (1, 4, 16)]
    assert 0.9 > same[0] > same[1] > same[2] > 0.02


def test_the_seed_alone_decides(features: DeadLeaves) -> None:
    assert torch.equal(small().weight, features.weight)
    torch.manual_seed(1)
    assert not torch.equal(DeadLeaves(1, 12, 24, kernel_size=4).weight, features.weight)


def test_more_filters_than_one_set_of_images_yields() -> None:
    torch.manual_seed(6)
    assert len(DeadLeaves(1, 12, 300, kernel_size=4).weight.unique(dim=0)) > 290
