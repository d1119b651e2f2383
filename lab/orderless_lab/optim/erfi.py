r"""erfi, the imaginary error function, which torch does not have.

    erfi(x) = 2/sqrt(pi) int_0^x e^{t^2} dt = -e^{x^2} Im w(-x),   w the Faddeeva function

For a real argument z Weideman's approximation of w (SIAM J. Numer. Anal. 31(5), 1994) is a short
trigonometric sum: with Z = (L + iz) / (L - iz) = e^{i phi}, phi = 2 atan(z / L),

    w(z) ~ 2 / (L - iz)^2 sum_{n=1}^N a_n Z^{n-1} + 1 / (sqrt(pi) (L - iz)),
    a_n = 1/(2M) sum_{k=-M+1}^{M-1} f(t_k) cos(pi n k / M),  M = 2N,
    f(t) = e^{-t^2} (L^2 + t^2),  t_k = L tan(pi k / 2M),  L = sqrt(N / sqrt 2)

The imaginary part is computed below as a sum of terms that each vanish with x, so the relative
error stays near 1e-14 down to x = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_TERMS = {"exact": 48, "reference": 128}
# e^{x^2} is bounded by e^700 ~ 1e304, because inf * 0 would be NaN.
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Erfi:
    """erfi as a function on float64 tensors, without branches.

    `coefficients` `[N]` are Weideman's a_n, `width` his L.
    """

    coefficients: Tensor
    width: float

    def __call__(self, x: Tensor) -> Tensor:
        x, width = x.double(), self.width
        powers = torch.arange(len(self.coefficients), dtype=x.dtype, device=x.device)
        angle = -2.0 * torch.atan(x / width).unsqueeze(-1) * powers
        real = (self.coefficients * torch.cos(angle)).sum(-1)
        imaginary = (self.coefficients * torch.sin(angle)).sum(-1)
        modulus = width**2 + x.square()
        w = 2.0 * (imaginary * (width**2 - x.square()) - real * 2.0 * width * x) / modulus.square()
        w = w - x / (modulus * math.sqrt(math.pi))
        return -w * torch.exp(x.square().clamp(max=_LARGEST_EXPONENT))

    def to(self, device: torch.device) -> Erfi:
        return Erfi(self.coefficients.to(device), self.width)


def erfi_of(kind: str) -> Erfi:
    """`"exact"`, or `"reference"`: the values of the package trac-optimizer.

    The reference's transform is over 2M - 1 points instead of 2M and shifted by one, so it has
    cos(2 pi n (k - 1) / (2M - 1)) for cos(pi n k / M), and its erfi is 1% low near 0.
    """
    if kind not in _TERMS:
        raise ValueError(f"erfi must be one of {', '.join(_TERMS)}, got {kind!r}")
    terms, points = _TERMS[kind], 2 * _TERMS[kind]
    width = math.sqrt(terms / math.sqrt(2.0))
    k = torch.arange(1 - points, points, dtype=torch.float64)
    t = width * torch.tan(math.pi * k / (2 * points))
    f = torch.exp(-t.square()) * (width**2 + t.square())
    n = torch.arange(1, terms + 1, dtype=torch.float64).unsqueeze(1)
    if kind == "exact":
        phase = math.pi * n * k / points
    else:
        phase = 2.0 * math.pi * n * (k - 1.0) / (2 * points - 1)
    return Erfi((f * torch.cos(phase)).sum(1) / (2 * points), width)
