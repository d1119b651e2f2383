"""Random numbers that depend on (seed, draw, particle, element) and on nothing else.

torch's generators hand out numbers in sequence, so what particle i receives would depend on how
many particles stand before it, on the chunk size and on the device. Here every number is a hash
of its coordinates: particle i draws the same noise alone, among N, in any chunk, on any device.
The mixing function is the two-round multiply-xorshift `lowbias32` of C. Wellons (public domain).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - (1 << 32)  # the same bits as a signed 32-bit integer
_GOLDEN = 0x9E3779B9 - (1 << 32)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift of int32 (torch's `>>` drags the sign along)."""
    return (bits >> by) & ((1 << (32 - by)) - 1)


def _signed(number: int) -> int:
    """The lowest 32 bits of a number as a signed 32-bit integer."""
    return ((number + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def mix(bits: Tensor) -> Tensor:
    """A bijective scramble of int32, wrapping on overflow."""
    bits = (bits ^ _shift_right(bits, 16)) * _MULTIPLIER_1
    bits = (bits ^ _shift_right(bits, 15)) * _MULTIPLIER_2
    return bits ^ _shift_right(bits, 16)


def particle_keys(seed: int, draw: Tensor, indices: Tensor, stream: int = 0) -> Tensor:
    """One int32 key per particle for one draw: `[N]`. `stream` separates uses within a draw."""
    key = torch.full_like(indices, _signed(seed), dtype=torch.int32)
    key = mix(mix(key + _GOLDEN) ^ _signed(seed >> 32))
    for part in (indices.to(torch.int32), draw.to(torch.int32), (draw >> 31).to(torch.int32)):
        key = mix(key ^ part) + _GOLDEN
    return mix(key ^ stream)


def _bits(keys: Tensor, count: int) -> Tensor:
    """`[..., count]` int32 hashes, one per (key, element)."""
    counter = torch.arange(count, dtype=torch.int32, device=keys.device) * _GOLDEN
    return mix(mix(counter ^ keys.unsqueeze(-1)) + keys.unsqueeze(-1))


def uniform(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform float32 in (0, 1): `keys.shape + shape`."""
    bits = _shift_right(_bits(keys, math.prod(shape)), 8)
    return ((bits.to(torch.float32) + 0.5) * 2.0**-24).reshape(keys.shape + shape)


def normal(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal float32 by Box and Muller: `keys.shape + shape`."""
    count = math.prod(shape)
    half = (count + 1) // 2
    u = uniform(keys, (2 * half,))
    radius = (-2.0 * u[..., :half].log()).sqrt()
    angle = 2.0 * math.pi * u[..., half:]
    pairs = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return pairs[..., :count].reshape(keys.shape + shape)
