"""Which output columns a loss depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...particles import Ensemble


def reached_columns(particles: Ensemble, closures: Sequence[Callable[[], Tensor]]) -> Tensor | None:
    """The output columns `[C]` whose scores the losses depend on; None where outputs have none.

    A gradient of zero at the outputs alone would not tell: a head that starts at zero meets targets
    of zero without any. So the losses are looked at where the outputs have been moved at random.
    Nothing changes: neither parameters, buffers, gradients nor noise.
    """
    moved: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)

    def move(module: nn.Module, args: Any, outputs: Any) -> Any:
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
            return outputs
        noise = torch.randn(outputs.shape, generator=generator).to(outputs)
        moved.append((outputs.detach() + noise).requires_grad_())
        return moved[-1]

    trained = [p for p in particles.parameters() if p.requires_grad]
    devices = [particles.device] if particles.device.type == "cuda" else []
    hook = particles.register_forward_hook(move)
    for parameter in trained:
        parameter.requires_grad_(False)  # a recorded step must not meet what autograd notes here
    try:
        with (
            torch.enable_grad(),
            particles.replay(particles._draws),
            torch.random.fork_rng(devices),
        ):
            losses = [closure() for closure in closures]
    finally:
        hook.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
    usable = [loss for loss in losses if isinstance(loss, Tensor) and loss.requires_grad]
    if not moved or not usable or len({outputs.shape[-1] for outputs in moved}) > 1:
        return None
    slopes = torch.autograd.grad([loss.sum() for loss in usable], moved, allow_unused=True)
    felt = [(slope != 0).flatten(0, -2).any(0) for slope in slopes if slope is not None]
    return torch.stack(felt).any(0)
