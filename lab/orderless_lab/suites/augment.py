"""Augmentations and transforms of image batches.

Augmentation acts on the stored bytes and draws from a CPU generator, so that every device sees
the same stream. A transform then converts them to float32. All are functions of a whole batch.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def to_unit(x: Tensor) -> Tensor:
    """Bytes to [0, 1]: uint8 [B, ...] -> float32 [B, ...]."""
    return x.to(torch.float32) / 255  # never in place: x may be float32, and the data itself


def to_symmetric(x: Tensor) -> Tensor:
    """Bytes to [-1, 1], as (x - 0.5) / 0.5: uint8 [B, ...] -> float32 [B, ...]."""
    return to_unit(x).sub_(0.5).div_(0.5)


def imagenet_normalize(x: Tensor) -> Tensor:
    """Bytes to ImageNet's mean 0 and standard deviation 1 per channel: [B, 3, H, W] -> same."""
    mean, std = _imagenet_constants(x.device)
    return to_unit(x).sub_(mean).div_(std)


@lru_cache
def _imagenet_constants(device: torch.device) -> Tensor:
    # cached on the device: copying them for every batch would cost more than the arithmetic
    return torch.tensor([IMAGENET_MEAN, IMAGENET_STD], device=device).view(2, 1, 3, 1, 1)


def flip_and_crop(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Random horizontal flip, and random crop of the image padded with black on all sides.

    x: [B, C, H, W]; each image gets its own flip (probability 1/2) and its own offset, uniform
    over the (2 * padding + 1)^2 places. The whole batch is gathered by one indexing operation.
    """
    batch, channels, height, width = x.shape
    offsets = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator)
    flips = torch.randint(0, 2, (1, batch), generator=generator)
    top, left, flip = torch.cat([offsets, flips]).to(x.device, non_blocking=True)[:, :, None]
    rows = top + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    columns = left + torch.where(flip.bool(), columns.flip(0), columns)
    padded = F.pad(x, [padding] * 4)
    which = torch.arange(batch, device=x.device).view(batch, 1, 1, 1)
    channel = torch.arange(channels, device=x.device).view(1, channels, 1, 1)
    return padded[which, channel, rows[:, None, :, None], columns[:, None, None, :]]
