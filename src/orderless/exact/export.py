"""The head as an ordinary module, for `torch.export` and programs without this library."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .held_out import by_label, label_table
from .sums import tasks_and_labels

if TYPE_CHECKING:
    from .head import ExactHead


class ExportedHead(nn.Module):
    """Maps, grid and heads: x `[B, ...]` to `predictive(x).mean` `[B, K]` or `predict(x)` `[B, C]`.

    Unlike the head's blocks, the batch may change the last bits of a sample's result.
    """

    weight: Tensor
    intercept: Tensor
    mean: Tensor
    factor: Tensor
    noise: Tensor
    shares: Tensor
    table: Tensor

    def __init__(self, head: ExactHead, probabilities: bool, portable: bool) -> None:
        super().__init__()
        if probabilities and not head.basis.classes:
            raise ValueError("targets='values' has no probabilities: export() gives its mean")
        solution = head.solution()
        posteriors = solution.heads
        if head.sums is None:
            raise ValueError("nothing to export yet: update with some data first")
        self.maps = nn.ModuleList([copy.deepcopy(module) for module in head.grid.maps])
        self.limit = head.grid.limit
        self.scale = head.grid.scale
        self.floats = head.grid.padded
        self.portable = portable
        self.across = head.across_tasks if probabilities else None
        self.register_buffer("shares", head.weights.view(-1, 1, 1))
        for name in ("weight", "intercept"):
            parts = [getattr(posterior, name) for posterior in posteriors]
            self.register_buffer(name, torch.stack(parts))
        if not probabilities:
            return
        factors = torch.stack([posterior.factor for posterior in posteriors])
        if portable:
            identity = torch.eye(factors.shape[1], dtype=factors.dtype, device=factors.device)
            factors = torch.linalg.solve_triangular(factors, identity, upper=False)
        self.register_buffer("factor", factors)
        self.register_buffer("mean", torch.stack([posterior.mean for posterior in posteriors]))
        noise = [p.noise_variance / solution.sharpness**2 for p in posteriors]
        self.register_buffer("noise", factors.new_tensor(noise))
        self.constant = posteriors[0].intercept_leverage
        labels = tasks_and_labels(head.sums.columns)[1]
        count = head.classes or int(labels.max()) + 1
        self.register_buffer("table", label_table(labels, count))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() if x.dtype == torch.uint8 and self.floats else x
        features = torch.stack([self._features(part(x)) for part in self.maps])
        values = features @ self.weight + self.intercept.unsqueeze(1)
        if self.across is None:
            return (self.shares * values).sum(0)
        leverage = self._solved(features - self.mean.unsqueeze(1)).square().sum(1) + self.constant
        variance = self.noise.unsqueeze(1) * (1.0 + leverage)
        logits = values / variance.sqrt().unsqueeze(2)
        return (self.shares * by_label(logits, self.table, self.across).softmax(-1)).sum(0)

    def _features(self, features: Tensor) -> Tensor:
        features = features if features.dtype == torch.float64 else features.float()
        largest = self.limit * self.scale
        return ((features * self.scale).round().clamp(-largest, largest) / self.scale).double()

    def _solved(self, rows: Tensor) -> Tensor:
        """L^-1 z: `[N, M, B]`."""
        if self.portable:
            return self.factor @ rows.mT
        return torch.linalg.solve_triangular(self.factor, rows.mT, upper=False)
