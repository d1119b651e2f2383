"""Random numbers that depend on (seed, draw, particle, element) alone.

torch's generators produce numbers in sequence, so the noise of particle i would depend on the
number of particles before it, on the chunk size and on the device. Here every number is a hash of
its coordinates: particle i draws the same noise alone, among N, in any chunk, on any device.
The mixing function is the two-round multiply-xorshift `lowbias32` of C. Wellons (public domain).
"""

import math

import torch
from torch import Tensor

_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - (1 << 32)  # the same bits as a signed 32-bit integer
_GOLDEN = 0x9E3779B9 - (1 << 32)


def _signed(number: int) -> int:
    """The lowest 32 bits of a number as a signed 32-bit integer."""
    return ((number + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def mix(bits: Tensor) -> Tensor:
    """A bijective hash of int32, wrapping on overflow."""
    return _mix_(bits.clone())


def _mix_(bits: Tensor) -> Tensor:
    """`mix` in place: for large tensors, allocating memory costs more than the arithmetic."""
    _xor_shifted_(bits, 16).mul_(_MULTIPLIER_1)
    _xor_shifted_(bits, 15).mul_(_MULTIPLIER_2)
    return _xor_shifted_(bits, 16)


def _xor_shifted_(bits: Tensor, by: int) -> Tensor:
    return bits.bitwise_xor_(_shift_right_(bits.clone(), by))


def _shift_right_(bits: Tensor, by: int) -> Tensor:
    """Logical shift of int32, in place (torch's `>>` extends the sign)."""
    return bits.bitwise_right_shift_(by).bitwise_and_((1 << (32 - by)) - 1)


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
    keys = keys.unsqueeze(-1)
    return _mix_(_mix_(counter ^ keys).add_(keys))


def uniform(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform float32 in (0, 1): `keys.shape + shape`."""
    bits = _shift_right_(_bits(keys, math.prod(shape)), 8)
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-24).reshape(keys.shape + shape)


def normal(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal float32 by Box and Muller: `keys.shape + shape`."""
    count = math.prod(shape)
    half = (count + 1) // 2
    u = uniform(keys, (2 * half,))
    radius, angle = u[..., :half], u[..., half:]
    radius.log_().mul_(-2.0).sqrt_()
    angle.mul_(2.0 * math.pi)
    sine = angle.sin().mul_(radius)
    radius.mul_(angle.cos_())  # radius and angle are views of u, which becomes the result
    angle.copy_(sine)
    return u[..., :count].reshape(keys.shape + shape)
