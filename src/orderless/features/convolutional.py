"""Random convolutional features for images."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .exact import round_weights
from .patches import LARGEST_RESPONSE, PATCH_LIMIT, RESPONSE_BITS, PatchFeatures


def natural_covariance(
    channels: int, size: int, length: float = 8.0, colour: float = 0.92
) -> Tensor:
    """How pixels of a `size` x `size` patch of a natural image vary together: `[K, K]`, float64.

    exp(-distance / length) over space times `colour` between different channels. A fixed model of
    photographs, with the variance of one pixel as unit; no data set is looked at.
    """
    axis = torch.arange(size, dtype=torch.float64)
    places = torch.cartesian_prod(axis, axis)
    space = torch.exp(-torch.cdist(places, places) / length)
    between = torch.full((channels, channels), colour, dtype=torch.float64).fill_diagonal_(1.0)
    return torch.kron(between, space)


class RandomConvolution(PatchFeatures):
    """Random filters over normalised patches, rectified and averaged over regions. Never trained.

    For every patch p of the image, brought to mean 0 and variance about 1 (as in Coates, Lee and
    Ng, 2011), and random filters g ~ N(0, I):

        w = Sigma^-1/2 g / |g|          Sigma = natural covariance + ridge I
        phi = mean over a region of max(w^T p - threshold, 0)

    so that w^T Sigma w = 1: scaled analytically, no data needed. Input `[B, channels, size, size]`,
    output `[B, filters * regions^2]`. The result for a sample is the same to the bit in any batch,
    at any place in it, on any device (`exact`): patches, filters and rectified responses lie on
    grids on which every sum is exact.

    Args:
        channels, size: of the images, which are square.
        filters: how many; there are `filters * regions**2` features.
        kernel_size, stride, regions: patches of kernel_size^2 pixels (6 x 6) every `stride` pixels
            (1), averaged over a grid of regions x regions (2 x 2).
        ridge: noise variance added to the natural covariance; small values sharpen the filters.
        threshold: how strong a response must be to count (0.25).
        contrast: added to a patch's variance (0.1), so that empty patches do not become noise.
        input_limit: a power of two (4); inputs are clipped to +-this and rounded to 1/256 of it.
    """

    bias: nn.Parameter

    def __init__(
        self, channels: int, size: int, filters: int, *, ridge: float = 0.1, **options: Any
    ) -> None:
        super().__init__(channels, size, filters, ridge=ridge, **options)
        self.out_features = filters * self.regions**2
        self.bias = nn.Parameter(torch.empty(filters), False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw other filters from torch's generator."""
        covariance = natural_covariance(self.channels, self.kernel_size)
        covariance += self.ridge * torch.eye(len(covariance), dtype=torch.float64)
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.rsqrt()) @ vectors.T
        drawn = torch.randn(self.filters, len(covariance), dtype=torch.float64)
        filters = F.normalize(drawn, dim=1) @ root
        bias = torch.full((self.filters,), -self.threshold, dtype=torch.float64)
        # In units of the responses' grid, so that rounding to it is rounding to whole numbers.
        scale = 2.0**RESPONSE_BITS
        weight, bias = round_weights(filters * scale, bias * scale, PATCH_LIMIT)
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def _features(self, x: Tensor) -> Tensor:
        responses = F.linear(self._patches(x), self.weight, self.bias).round_()
        sums = self.regions_matrix @ responses.clamp(0.0, LARGEST_RESPONSE)
        return (sums / self._region_sizes()).flatten(1)
