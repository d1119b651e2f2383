"""What the convolutional maps share: filters over normalised patches, pooled over regions."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .exact import check_limit, round_inputs

RESPONSE_BITS = 12  # responses lie on a grid of 2^-12 and below 2^4: 16 bits
LARGEST_RESPONSE = 2.0 ** (RESPONSE_BITS + 4)  # in units of that grid
PATCH_LIMIT = 8.0  # normalised patches have variance 1; what is larger is clipped


class PatchFeatures(nn.Module, ABC):
    """Filters over normalised patches, rectified and averaged over regions; see the subclasses.

    The result for a sample is the same to the bit in any batch, at any place in it, on any device:
    patches, filters and rectified responses lie on grids on which every sum is exact.
    """

    exact = True
    weight: nn.Parameter
    regions_matrix: Tensor

    def __init__(
        self,
        channels: int,
        size: int,
        filters: int,
        *,
        ridge: float,
        kernel_size: int = 6,
        stride: int = 1,
        regions: int = 2,
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
        self.weight = nn.Parameter(torch.empty(filters, channels * kernel_size**2), False)
        self.register_buffer("regions_matrix", self._regions(), persistent=False)

    def _regions(self) -> Tensor:
        """Which place belongs to which region, as 0 and 1: `[regions^2, places^2]`."""
        cuts = [-(-i * self.places // self.regions) for i in range(self.regions + 1)]
        line = torch.zeros(self.regions, self.places)
        for region in range(self.regions):
            line[region, cuts[region] : cuts[region + 1]] = 1.0
        return torch.kron(line, line)

    def forward(self, x: Tensor) -> Tensor:
        expected = (self.channels, self.size, self.size)
        if tuple(x.shape[1:]) != expected:
            raise ValueError(f"each sample must be an image {expected}, got {tuple(x.shape[1:])}")
        if torch.compiler.is_exporting():  # to a program for batches of any size
            return self._features(x)
        # The responses are large; a few images at a time keep them small. No bit depends on it.
        room = 1 << (28 if x.is_cuda else 20)
        count = max(1, room // (self.filters * self.places**2))
        return torch.cat([self._features(part) for part in x.split(count)])

    @abstractmethod
    def _features(self, x: Tensor) -> Tensor:
        """Features `[B, M]` of a few images."""

    def _patches(self, x: Tensor) -> Tensor:
        """The normalised patches of images, `[B, places^2, channels * kernel_size^2]`."""
        x = round_inputs(x, self.input_limit, torch.float32)
        unit = self.input_limit / 256.0
        # integers up to 2^8: sums of squares stay below 2^24
        whole = F.unfold(x, self.kernel_size, stride=self.stride).mT / unit
        return normalized(whole, unit, self.contrast)

    def _region_sizes(self) -> Tensor:
        return self.regions_matrix.sum(1, keepdim=True) * 2.0**RESPONSE_BITS

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, {self.size}, {self.filters}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, regions={self.regions}, ridge={self.ridge}, "
            f"threshold={self.threshold}, contrast={self.contrast}, input_limit={self.input_limit}"
        )


def normalized(whole: Tensor, unit: float, contrast: float) -> Tensor:
    """Patches `[..., K]` in whole units brought to mean 0 and variance about 1, from exact sums."""
    count = whole.shape[-1]
    total = whole.sum(-1, keepdim=True)
    squares = (whole * whole).sum(-1, keepdim=True)
    # Only operations that every device, every number of patches and onnxruntime round alike:
    # products instead of a division by `count` or a power, and the root in float64. MKL's float32
    # root is one unit off for one number in five, but only in long vectors. The root of a float32
    # lies no nearer than 2^-50 to where rounding to float32 changes, so a float64 root that is off
    # by two units still rounds to the right one.
    mean = total * (1.0 / count)
    variance = (squares * (1.0 / count) - mean * mean).clamp(min=0.0) * unit**2
    deviation = (variance + contrast).double().sqrt().float()
    return round_inputs((whole - mean) * unit / deviation, PATCH_LIMIT, torch.float32)
