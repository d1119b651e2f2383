"""The head as an ordinary module, for `torch.export` and programs without this library."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .grid import on_grid
from .solution import by_label
from .sums import tasks_and_labels

if TYPE_CHECKING:
    from .head import ExactHead


class ExportedHead(nn.Module):
    """Maps, grid and heads: x `[B, ...]` to `predictive(x).mean` `[B, K]` or `predict(x)` `[B, C]`.

    Unlike the head's blocks, the batch may change the last bits of a sample's result. The factors L
    of the heads are inverted beforehand: ONNX has no triangular solve.
    """

    weight: Tensor  # [N, M, K]
    intercept: Tensor  # [N, K]
    shares: Tensor  # [N], of the maps
    mean: Tensor  # [N, M], of the features
    inverse: Tensor  # [N, M, M], L^-1
    noise: Tensor  # [N], noise variances over the sharpness squared
    labels: Tensor  # [K]

    def __init__(self, head: ExactHead, probabilities: bool) -> None:
        super().__init__()
        if probabilities and not head.basis.classes:
            raise ValueError("targets='values' has no probabilities: export() gives its mean")
        if head.sums is None:
            raise ValueError("nothing to export yet: update with some data first")
        solution = head.solution()
        heads = solution.heads
        self.maps = nn.ModuleList([copy.deepcopy(module) for module in head.grid.maps])
        self.limit = head.grid.limit
        self.bits = head.grid.bits
        self.floats = head.grid.padded
        self.probabilities = probabilities
        self.register_buffer("shares", head.weights)
        self.register_buffer("weight", torch.stack([own.weight for own in heads]))
        self.register_buffer("intercept", torch.stack([own.intercept for own in heads]))
        if not probabilities:
            return
        factors = torch.stack([own.factor for own in heads])
        identity = torch.eye(factors.shape[1], dtype=factors.dtype, device=factors.device)
        inverse = torch.linalg.solve_triangular(factors, identity, upper=False)
        self.register_buffer("inverse", inverse)
        self.register_buffer("mean", torch.stack([own.mean for own in heads]))
        noise = [own.noise_variance / solution.sharpness**2 for own in heads]
        self.register_buffer("noise", factors.new_tensor(noise))
        self.constant = heads[0].intercept_leverage
        labels = tasks_and_labels(head.sums.columns)[1]
        self.register_buffer("labels", labels)
        self.classes = head.classes or int(labels.max()) + 1

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() if x.dtype == torch.uint8 and self.floats else x
        features = torch.stack([self._features(module(x)) for module in self.maps])
        values = features @ self.weight + self.intercept.unsqueeze(1)
        shares = self.shares.view(-1, 1, 1)
        if not self.probabilities:
            return (shares * values).sum(0)
        solved = self.inverse @ (features - self.mean.unsqueeze(1)).mT
        leverage = solved.square().sum(1) + self.constant
        deviation = (self.noise.unsqueeze(1) * (1.0 + leverage)).sqrt()
        scores = by_label(values / deviation.unsqueeze(2), self.labels, self.classes)
        return (shares * scores.softmax(-1)).sum(0)

    def _features(self, features: Tensor) -> Tensor:
        features = features if features.dtype == torch.float64 else features.float()
        return on_grid(features, self.limit, self.bits).double()
