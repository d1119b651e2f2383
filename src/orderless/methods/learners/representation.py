"""What a network makes of its inputs, for the measures of plasticity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...filters import Predictor


@torch.no_grad()
def heaviest_representation(filter: Predictor, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What the last linear layer of the heaviest network sees, and that network's weights."""
    network = filter.networks[int(filter.weights.argmax())].eval()
    seen: list[Tensor] = []
    last = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    network(x)
    hook.remove()
    return seen[0], list(network.parameters())
