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

import math

import torch
from torch import Tensor

TERMS = 48  # N
WIDTH = math.sqrt(TERMS / math.sqrt(2.0))  # L
# e^{x^2} is bounded by e^700 ~ 1e304, because inf * 0 would be NaN.
LARGEST_EXPONENT = 700.0


class Erfi:
    """erfi as a function on float64 tensors of a device, without branches."""

    def __init__(self, device: torch.device) -> None:
        points = 2 * TERMS
        k = torch.arange(1 - points, points, dtype=torch.float64)
        t = WIDTH * torch.tan(math.pi * k / (2 * points))
        f = torch.exp(-t.square()) * (WIDTH**2 + t.square())
        n = torch.arange(1, TERMS + 1, dtype=torch.float64).unsqueeze(1)
        coefficients = (f * torch.cos(math.pi * n * k / points)).sum(1) / (2 * points)
        self.coefficients = coefficients.to(device)
        self.powers = torch.arange(TERMS, dtype=torch.float64, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        angle = -2.0 * torch.atan(x / WIDTH).unsqueeze(-1) * self.powers
        real = (self.coefficients * torch.cos(angle)).sum(-1)
        imaginary = (self.coefficients * torch.sin(angle)).sum(-1)
        modulus = WIDTH**2 + x.square()
        w = 2.0 * (imaginary * (WIDTH**2 - x.square()) - real * 2.0 * WIDTH * x) / modulus.square()
        w = w - x / (modulus * math.sqrt(math.pi))
        return -w * torch.exp(x.square().clamp(max=LARGEST_EXPONENT))
