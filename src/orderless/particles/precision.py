"""How float32 matrix products are carried out, said explicitly and undone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

PRECISIONS = ("float32", "tf32", "bf16")


@contextmanager
def matrix_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Run in `float32` (no reduced products anywhere), `tf32` (tensor cores) or `bf16` (autocast).

    torch lets convolutions use TF32 by default; here nothing is reduced unless asked for. With
    `bf16` what is left in float32, such as products of bf16 factors, goes through TF32, which holds
    more digits than they have.
    """
    if device.type != "cuda":
        with ExitStack() as stack:
            if precision == "bf16":
                stack.enter_context(torch.autocast(device.type, torch.bfloat16))
            yield
        return
    products = torch.backends.cuda.matmul
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = products.fp32_precision, convolutions.fp32_precision
    wanted = "ieee" if precision == "float32" else "tf32"
    products.fp32_precision = convolutions.fp32_precision = wanted
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        products.fp32_precision, convolutions.fp32_precision = before
