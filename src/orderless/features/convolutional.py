"""Random convolutional features for images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .exact import check_limit, round_inputs, round_weights

_RESPONSE_BITS = 12  # responses lie on a grid of 2^-12 and below 2^4: 16 bits
_PATCH_LIMIT = 8.0  # normalised patches have variance 1; what is larger is clipped


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


class RandomConvolution(nn.Module):
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
        kernel_size, stride, regions: patches of kernel_size^2 pixels every `stride` pixels,
            averaged over a grid of regions x regions.
        ridge: noise variance added to the natural covariance; small values sharpen the filters.
        threshold: how strong a response must be to count.
        contrast: added to a patch's variance, so that empty patches are not blown up to noise.
        input_limit: a power of two; inputs are clipped to +-this and rounded to 1/256 of it.
    """

    exact = True
    weight: nn.Parameter
    bias: nn.Parameter
    regions_matrix: Tensor

    def __init__(
        self,
        channels: int,
        size: int,
        filters: int,
        *,
        kernel_size: int = 6,
        stride: int = 1,
        regions: int = 2,
        ridge: float = 0.1,
        threshold: float = 0.25,
        contrast: float = 0.1,
        input_limit: float = 4.0,
    ) -> None:
        super().__init__()
        self.places = (size - kernel_size) // stride + 1
        if min(channels, filters, kernel_size, stride, regions) < 1 or self.places < regions:
            raise ValueError(
                f"images of {size} pixels have {max(self.places, 0)} places per side for a kernel "
                f"of {kernel_size} at stride {stride}: {channels} channels, {filters} filters and "
                f"{regions} regions must all be at least 1, with at least one place per region"
            )
        if not ridge > 0 or not contrast > 0:
            raise ValueError(f"ridge and contrast must be positive, got {ridge} and {contrast}")
        if -(-self.places // regions) > 16 or channels * kernel_size**2 > 256:
            raise ValueError(
                "sums are exact over at most 16 x 16 places per region and 256 values per patch: "
                "use more regions, a larger stride or a smaller kernel"
            )
        self.channels, self.size, self.filters = channels, size, filters
        self.kernel_size, self.stride, self.regions = kernel_size, stride, regions
        self.ridge, self.threshold, self.contrast = ridge, threshold, contrast
        self.input_limit = check_limit(input_limit)
        self.out_features = filters * regions**2
        values = channels * kernel_size**2
        self.weight = nn.Parameter(torch.empty(filters, values), False)
        self.bias = nn.Parameter(torch.empty(filters), False)
        self.register_buffer("regions_matrix", self._regions(), persistent=False)
        self.reset_parameters()

    def _regions(self) -> Tensor:
        """Which place belongs to which region, as 0 and 1: `[regions^2, places^2]`."""
        cuts = [-(-i * self.places // self.regions) for i in range(self.regions + 1)]
        line = torch.zeros(self.regions, self.places)
        for region in range(self.regions):
            line[region, cuts[region] : cuts[region + 1]] = 1.0
        return torch.kron(line, line)

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
        scale = 2.0**_RESPONSE_BITS
        weight, bias = round_weights(filters * scale, bias * scale, _PATCH_LIMIT)
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        expected = (self.channels, self.size, self.size)
        if tuple(x.shape[1:]) != expected:
            raise ValueError(f"each sample must be an image {expected}, got {tuple(x.shape[1:])}")
        # The responses are large; a few images at a time keep them small. No bit depends on it.
        room = 1 << (28 if x.is_cuda else 23)
        count = max(1, room // (self.filters * self.places**2))
        return torch.cat([self._features(part) for part in x.split(count)])

    def _features(self, x: Tensor) -> Tensor:
        x = round_inputs(x, self.input_limit, torch.float32)
        patches = self._normalized(F.unfold(x, self.kernel_size, stride=self.stride).mT)
        responses = F.linear(patches, self.weight, self.bias)  # [B, places^2, filters]
        responses = responses.round_().clamp(0.0, 2.0 ** (_RESPONSE_BITS + 4))
        sums = self.regions_matrix @ responses
        sizes = self.regions_matrix.sum(1, keepdim=True) * 2.0**_RESPONSE_BITS
        return (sums / sizes).flatten(1)

    def _normalized(self, patches: Tensor) -> Tensor:
        """Mean 0, variance about 1, from exact sums: patches `[B, L, K]` on the inputs' grid."""
        count = patches.shape[-1]
        unit = self.input_limit / 256.0
        whole = patches / unit  # integers up to 2^8: sums of squares stay below 2^24
        total = whole.sum(-1, keepdim=True)
        squares = whole.square().sum(-1, keepdim=True)
        # Times 1/count, not divided by it: there CPU and GPU round differently.
        mean = total * (1.0 / count)
        variance = (squares * (1.0 / count) - mean.square()).clamp(min=0.0) * unit**2
        centred = (whole - mean) * unit
        normalized = centred / (variance + self.contrast).sqrt()
        return round_inputs(normalized, _PATCH_LIMIT, torch.float32)

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, {self.size}, {self.filters}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, regions={self.regions}, ridge={self.ridge}, "
            f"threshold={self.threshold}, contrast={self.contrast}, input_limit={self.input_limit}"
        )
