"""Features from dead leaves: filters for natural images, made without any data."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .convolutional import PatchFeatures, normalized

_LEAVES = 300  # per image; they cover nine in ten pixels
_LARGEST = 32  # radius of a leaf, in pixels
_UNIT = 1.0 / 64.0  # colours 0..255 as pixels of variance about 1


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
