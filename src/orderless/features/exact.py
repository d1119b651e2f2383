"""Maps whose floating-point sums have no rounding: random ReLU features, filters for images.

None needs data; the filters are random, or patches of dead-leaves images.

A float32 sum depends on the order of its terms, hence on the kernel, on the size of the batch, on a
row's place in it and on the device. If inputs are multiples of one power of two, a row's weights
multiples of another, and the absolute products of the row add up to less than 2^24 units, then
every product and every partial sum, in any order, is an integer that float32 represents exactly. So
all kernels agree: MKL, cuBLAS, any blocking, any number of threads.

Inputs get 8 bits and a sign. That leaves 2^16 units for the sum of a row's absolute weights, about
9 bits per weight for a 6 x 6 colour filter and 6 for a 784-pixel image: enough for *random*
weights, which may as well be drawn on a grid. Rows of more than 4096 inputs use float64 (2^53).
"""

import math
from abc import ABC, abstractmethod
from typing import Any, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INPUT_BITS = 8
_WHOLE = {torch.float32: 24, torch.float64: 53}  # integers up to 2^this are exact
RESPONSE_BITS = 12  # responses lie on a grid of 2^-12 and below 2^4: 16 bits
LARGEST_RESPONSE = 2.0 ** (RESPONSE_BITS + 4)  # in units of that grid
PATCH_LIMIT = 8.0  # normalised patches have variance 1; what is larger is clipped
THRESHOLD = 0.25  # subtracted from responses before they are rectified
CONTRAST = 0.1  # added to a patch's variance, so that flat patches do not become noise
_LEAVES = 300  # per image; they cover nine in ten pixels
_LARGEST = 32  # radius of a leaf, in pixels
_UNIT = 1.0 / 64.0  # colours 0..255 as pixels of variance about 1


def dtype_for(in_features: int) -> torch.dtype:
    """The smallest type in which a row of `in_features` weights can be exact and fine enough."""
    return torch.float32 if in_features <= 4096 else torch.float64


def round_inputs(x: Tensor, limit: float, dtype: torch.dtype) -> Tensor:
    """Round x to multiples of `limit / 256` and clip it at +-`limit`; NaN stays NaN."""
    unit = limit / 2**INPUT_BITS
    x = x if x.dtype == torch.float64 else x.float()
    return (x / unit).round_().clamp(-(2**INPUT_BITS), 2**INPUT_BITS).to(dtype).mul_(unit)


def round_weights(weight: Tensor, bias: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Round weight `[O, I]` and bias `[O]` (float64) to grids that make `x W^T + b` exact.

    Each row has its own unit u, the smallest power of two with
    (sum |w| + |b| / limit) / u + (I + 1) / 2 <= 2^(24 - 8); the halves bound the rounding.
    """
    dtype = dtype_for(weight.shape[1])
    room = 2 ** (_WHOLE[dtype] - INPUT_BITS) - (weight.shape[1] + 1) / 2
    size = weight.abs().sum(1) + bias.abs() / limit
    unit = torch.ldexp(torch.ones_like(size), torch.frexp(size / room).exponent)
    bias_unit = unit * (limit / 2**INPUT_BITS)
    rounded = (weight / unit.unsqueeze(1)).round() * unit.unsqueeze(1)
    return rounded.to(dtype), ((bias / bias_unit).round() * bias_unit).to(dtype)


def check_limit(limit: float, name: str = "input_limit") -> float:
    """Raise `ValueError` if a limit is no power of two, by which scaling is exact."""
    if not isinstance(limit, int | float) or math.frexp(limit)[0] != 0.5:
        raise ValueError(f"{name} must be a power of two such as 4 or 16, got {limit!r}")
    return float(limit)


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A setting as an int. Raise if it is no whole number within its bounds."""
    between = f"of at least {least}" if most is None else f"between {least} and {most}"
    whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    if not whole or int(value) < least or (most is not None and int(value) > most):
        raise ValueError(f"{name} must be a whole number {between}, got {value!r}")
    return int(value)


class RandomReLU(nn.Module):
    """phi(x) = max(W x + b, 0), W ~ N(0, 1 / in_features), b ~ N(0, bias_scale^2). Never trained.

    Input `[B, ...]` is flattened to `[B, in_features]`; output `[B, out_features]`, the same to the
    bit in any batch and on any device (`exact`).

    Args:
        input_limit: a power of two; inputs are clipped to +-this and rounded to 1/256 of it.
        bias_scale: with 0 features are straight lines through the origin, which suits images, whose
            brightness sets the scale of all inputs, and the outputs of networks.

    >>> RandomReLU(3, 100)(torch.rand(2, 3)).shape
    torch.Size([2, 100])
    """

    exact = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias_scale: float = 0.5,
        input_limit: float = 4.0,
    ) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                "RandomReLU needs at least one input and one feature, got "
                f"in_features={in_features}, out_features={out_features}"
            )
        if bias_scale < 0:
            raise ValueError(f"bias_scale must not be negative, got {bias_scale}")
        self.in_features = in_features
        self.out_features = out_features
        self.bias_scale = bias_scale
        self.input_limit = check_limit(input_limit)
        dtype = dtype_for(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype), False)
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights from torch's generator."""
        shape = self.out_features, self.in_features
        weight = torch.randn(shape, dtype=torch.float64) / self.in_features**0.5
        bias = torch.randn(self.out_features, dtype=torch.float64) * self.bias_scale
        weight, bias = round_weights(weight, bias, self.input_limit)
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2:
            raise ValueError(
                f"samples come in batches [B, ...], got one of shape {list(x.shape)}: use x[None]"
            )
        x = x.flatten(1)
        if x.shape[1] != self.in_features:
            raise ValueError(f"each sample must have {self.in_features} values, got {x.shape[1]}")
        x = round_inputs(x, self.input_limit, self.weight.dtype)
        return F.linear(x, self.weight, self.bias).relu_()

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, bias_scale={self.bias_scale}, "
            f"input_limit={self.input_limit}"
        )


class PatchFeatures(nn.Module, ABC):
    """Filters over normalised patches, rectified and averaged over regions; see the subclasses.

    A sample has the same features to the bit in any batch and on any device (`exact`): patches,
    filters and rectified responses lie on grids on which every sum is exact.
    """

    exact = True
    two_sided: bool  # whether there are features of negative responses, too
    ridge: float  # added to the covariance of patches
    weight: nn.Parameter
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
        input_limit: float = 4.0,
        mirror: bool = True,
    ) -> None:
        super().__init__()
        self.places = (size - kernel_size) // stride + 1
        if min(channels, filters, kernel_size, stride, regions) < 1 or self.places < regions:
            raise ValueError(
                f"images of {size} pixels have {max(self.places, 0)} places per side for a kernel "
                f"of {kernel_size} at stride {stride}: {channels} channels, {filters} filters and "
                f"{regions} regions must all be at least 1, with at least one place per region"
            )
        if -(-self.places // regions) > 16 or channels * kernel_size**2 > 256:
            raise ValueError(
                "sums are exact over at most 16 x 16 places per region and 256 values per patch: "
                "use more regions, a larger stride or a smaller kernel"
            )
        self.shape = (channels, size, size)
        self.filters = filters
        self.kernel_size = kernel_size
        self.stride = stride
        self.regions = regions
        self.input_limit = check_limit(input_limit)
        self.mirror = mirror
        self.out_features = (1 + self.two_sided) * filters * regions**2
        self.weight = nn.Parameter(torch.empty(filters, channels * kernel_size**2), False)
        # membership of places in regions, 0 or 1: `[regions^2, places^2]`
        line = F.one_hot(torch.arange(self.places) * regions // self.places).T.float()
        self.register_buffer("regions_matrix", torch.kron(line, line), persistent=False)
        self.reset_parameters()

    @abstractmethod
    def draw(self) -> Tensor:
        """New filters `[filters, channels * kernel_size^2]` from torch's generator, float64."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new filters from torch's generator."""
        # multiples of 2^-30, so that the sums that determine their final grid are exact; in units
        # of the responses' grid, so that rounding to it is rounding to whole numbers
        filters = (self.draw() * 2.0**30).round_() * 2.0 ** (RESPONSE_BITS - 30)
        self.weight.copy_(round_weights(filters, filters.new_zeros(len(filters)), PATCH_LIMIT)[0])

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"each sample must be an image {self.shape}, got {tuple(x.shape[1:])}")
        if torch.compiler.is_exporting():  # to a program for batches of any size
            return self._features(x)
        # a few images at a time bound the memory of the responses; no bit depends on it
        room = 1 << (28 if x.is_cuda else 20)
        count = max(1, room // (self.filters * self.places**2))
        return torch.cat([self._features(part) for part in x.split(count)])

    def _features(self, x: Tensor) -> Tensor:
        """Features `[B, M]` of a few images."""
        sums = self._sums(x).double()
        sizes = self.regions_matrix.sum(1, keepdim=True).double() * 2.0**RESPONSE_BITS
        if self.mirror:  # in float64: the sum may exceed 2^24, the integers of float32
            sums = sums + self._sums(x.flip(3))
            sizes = 2.0 * sizes
        return (sums / sizes).flatten(1).float()

    def _sums(self, x: Tensor) -> Tensor:
        """Rectified responses, summed over every region: `[B, regions^2, filters]`, or twice as
        many."""
        responses = F.linear(self._patches(x), self.weight).round_()
        # both sides in one pass over large memory: shrink towards 0 by the threshold
        beyond = F.softshrink(responses, THRESHOLD * 2.0**RESPONSE_BITS)
        beyond = beyond.clamp(-LARGEST_RESPONSE, LARGEST_RESPONSE)
        if not self.two_sided:
            return self.regions_matrix @ beyond.relu_()
        total = self.regions_matrix @ beyond
        above = self.regions_matrix @ beyond.relu_()
        return torch.cat([above, above - total], dim=2)

    def _patches(self, x: Tensor) -> Tensor:
        """The normalised patches of images, `[B, places^2, channels * kernel_size^2]`."""
        x = round_inputs(x, self.input_limit, torch.float32)
        unit = self.input_limit / 256.0
        # integers up to 2^8: sums of squares stay below 2^24
        whole = F.unfold(x, self.kernel_size, stride=self.stride).mT / unit
        return normalized(whole, unit)

    def extra_repr(self) -> str:
        return (
            f"{self.shape}, {self.filters}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"regions={self.regions}, input_limit={self.input_limit}, mirror={self.mirror}"
        )


def normalized(whole: Tensor, unit: float) -> Tensor:
    """Patches `[..., K]` in whole units, normalised to mean 0 and variance about 1."""
    count = whole.shape[-1]
    total = whole.sum(-1, keepdim=True)
    squares = (whole * whole).sum(-1, keepdim=True)
    # Sums of integers are exact. Everything else is rounded alike on every device, for every number
    # of patches and by onnxruntime: products instead of a division by `count` or a power, and the
    # root in float64. MKL's float32 root is one unit off for one number in five, but only in long
    # vectors. The root of a float32 lies at least 2^-50 away from where rounding to float32
    # changes, so a float64 root that is off by two units still rounds correctly.
    mean = total * (1.0 / count)
    variance = (squares * (1.0 / count) - mean * mean).clamp(min=0.0) * unit**2
    deviation = (variance + CONTRAST).double().sqrt().float()
    return round_inputs((whole - mean) * unit / deviation, PATCH_LIMIT, torch.float32)


def natural_covariance(channels: int, size: int) -> Tensor:
    """The covariance of pixels in a `size` x `size` patch of a natural image: `[K, K]`, float64.

    exp(-distance / 8) over space times 0.92 between different channels: a fixed model of
    photographs in which a pixel has variance 1. No data set is used.
    """
    axis = torch.arange(size, dtype=torch.float64)
    places = torch.cartesian_prod(axis, axis)
    space = torch.exp(-torch.cdist(places, places) / 8.0)
    between = torch.full((channels, channels), 0.92, dtype=torch.float64).fill_diagonal_(1.0)
    return torch.kron(between, space)


class RandomConvolution(PatchFeatures):
    """Random filters over normalised patches, rectified and averaged over regions. Never trained.

    For every patch p of the image, normalised to mean 0 and variance about 1 (as in Coates, Lee and
    Ng, 2011), and random filters g ~ N(0, I):

        w = Sigma^-1/2 g / |g|          Sigma = natural covariance + ridge I
        phi = mean over a region of max(w^T p - threshold, 0)

    so that w^T Sigma w = 1, without any data. With `mirror` the features are averaged over the
    image and its mirror image. Input `[B, channels, size, size]`, output
    `[B, filters * regions^2]`, the same to the bit in any batch and on any device (`exact`). The
    options are those of `DeadLeaves`.

    >>> RandomConvolution(3, 32, filters=100)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 400])
    """

    two_sided = False
    ridge = 0.1  # noise variance; small values sharpen the filters

    def draw(self) -> Tensor:
        covariance = natural_covariance(self.shape[0], self.kernel_size)
        covariance += self.ridge * torch.eye(len(covariance), dtype=torch.float64)
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.rsqrt()) @ vectors.T
        drawn = torch.randn(self.filters, len(covariance), dtype=torch.float64)
        return F.normalize(drawn, dim=1) @ root


@torch.no_grad()
def dead_leaves(count: int, size: int, channels: int = 3) -> Tensor:
    """Images of overlapping discs and squares of random colours: `[count, channels, size, size]`,
    uint8.

    Dead leaves (Matheron, 1968; Lee, Mumford and Huang, 2001) occlude each other like objects in a
    photograph. With radii r of density r^-3 the images are scale-invariant, and the statistics of
    small patches are close to those of natural images. Only integers are drawn from torch's
    generator, so that every machine makes the same images.
    """
    radii = torch.arange(1, _LARGEST + 1)
    # density r^-3 in the plane; the centres of leaves that touch the image fill (size + 2r)^2
    chances = ((1 << 20) * (size + 2 * radii) ** 2 // radii**3).cumsum(0)
    axis = torch.arange(size, dtype=torch.int16)
    most = int(chances[-1])
    one = (count, 1, 1)
    colours = (count, channels, 1, 1)
    images = torch.randint(256, colours).to(torch.uint8).repeat(1, 1, size, size)
    for _ in range(_LEAVES):
        radius = 1 + torch.searchsorted(chances, torch.randint(most, one), right=True)
        centres = [torch.randint(1 << 30, one) % (size + 2 * radius) - radius for _ in "xy"]
        across = (axis - centres[0]).to(torch.int16)
        down = (axis.view(-1, 1) - centres[1]).to(torch.int16)
        square = torch.randint(2, one) == 1
        radius = radius.to(torch.int16)
        disc = across.square() + down.square() <= radius.square()
        box = (across.abs() <= radius) & (down.abs() <= radius)
        leaf = torch.where(square, box, disc).unsqueeze(1)
        images = torch.where(leaf, torch.randint(256, colours).to(torch.uint8), images)
    return images


class DeadLeaves(PatchFeatures):
    """Filters from dead-leaves images, two-sided, rectified and averaged over regions. No data.

    For every patch p of the image and patches q of synthetic images (see `dead_leaves`), both
    normalised to mean 0 and variance about 1:

        w = Sigma^-1 q / (q^T Sigma^-1 q)^1/2        Sigma = covariance of the q + ridge
        phi+ = mean over a region of max(w^T p - threshold, 0)
        phi- = mean over a region of max(-w^T p - threshold, 0)

    w^T p is the whitened q, of length 1, times the whitened p (Coates, Lee and Ng, 2011). With
    `mirror` the features are averaged over the image and its mirror image. Input
    `[B, channels, size, size]`, output `[B, 2 * filters * regions^2]`, the same to the bit in any
    batch and on any device (`exact`). So are the filters, which depend on torch's generator alone:
    images and Sigma consist of integers, and the rest is computed by elementwise operations in a
    fixed order, whose rounding IEEE 754 determines.

    Args:
        channels, size: of the images, which are square.
        filters: their number; there are `2 * filters * regions**2` features.
        kernel_size, stride, regions: patches of kernel_size^2 pixels every `stride` pixels,
            averaged over a grid of regions x regions.
        input_limit: a power of two; inputs are clipped to +-this and rounded to 1/256 of it.
        mirror: whether an image and its mirror image mean the same; those of digits do not.

    >>> DeadLeaves(3, 32, filters=50)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 400])
    """

    two_sided = True
    ridge = 0.3  # in units of Sigma's mean eigenvalue

    def draw(self) -> Tensor:
        patches, covariance = self._draw()
        # q^T Sigma^-1 q, in a fixed order too
        solved = _product(patches, _inverse(covariance))
        energy = torch.zeros(len(patches), dtype=torch.float64)
        for left, right in zip(patches.T, solved.T, strict=True):
            energy += left * right
        lengths = energy.new_tensor([math.sqrt(value) for value in energy.tolist()])  # as IEEE 754
        return solved / lengths.unsqueeze(1)

    def _draw(self) -> tuple[Tensor, Tensor]:
        """Patches with enough contrast `[filters, K]` and the covariance of all, float64."""
        chosen: list[Tensor] = []
        missing = self.filters
        count = max(128, self.filters // 8)
        while missing > 0:
            images = dead_leaves(count, 4 * self.kernel_size, self.shape[0])
            whole = F.unfold(images.float() - 128.0, self.kernel_size).mT.flatten(0, 1)
            patches = normalized(whole, _UNIT).double()
            if not chosen:
                covariance = patches.T @ patches / len(patches)  # of whole numbers: exact sums
                covariance.diagonal().add_(self.ridge * covariance.diagonal().mean())
            full = patches.square().sum(1) > 0.5 * patches.shape[1]
            places = full.nonzero().squeeze(1)
            chosen.append(patches[places[torch.randperm(len(places))[:missing]]])
            missing -= len(chosen[-1])
        return torch.cat(chosen), covariance


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, summed in the order of the columns of `left` on every machine."""
    total = left.new_zeros(len(left), right.shape[1])
    for column, row in zip(left.T, right, strict=True):
        total += column.unsqueeze(1) * row
    return total


def _inverse(matrix: Tensor) -> Tensor:
    """The inverse of a positive definite matrix, by Gauss-Jordan elimination in a fixed order."""
    rows = torch.cat([matrix, torch.eye(len(matrix), dtype=matrix.dtype)], dim=1)
    for i in range(len(matrix)):
        row = rows[i] / rows[i, i]
        rows = rows - rows[:, i : i + 1] * row
        rows[i] = row
    return rows[:, len(matrix) :]
