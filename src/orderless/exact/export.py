"""The head as an ordinary module, for `torch.export` and programs without this library."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .ridge import HeadPosterior
from .targets import Classes, by_label, label_table, tasks_and_labels

if TYPE_CHECKING:
    from .head import ExactHead


class ExportedMap(nn.Module):
    """One map's head: features `[B, M]` to means `[B, K]`, or to logits."""

    weight: Tensor
    intercept: Tensor
    factor: Tensor
    mean: Tensor
    sharpness: Tensor

    def __init__(
        self, head: HeadPosterior, sharpness: float, probabilities: bool, portable: bool
    ) -> None:
        super().__init__()
        for name in ("weight", "intercept", *(("factor", "mean") if probabilities else ())):
            self.register_buffer(name, getattr(head, name).clone())
        self.noise_variance = head.noise_variance
        self.constant = head.intercept_leverage
        self.probabilities = probabilities
        self.portable = portable
        if probabilities and portable:
            identity = torch.eye(len(self.mean), dtype=self.factor.dtype, device=self.factor.device)
            self.factor = torch.linalg.solve_triangular(self.factor, identity, upper=False)
        # a tensor, as in the head: a number divided by a tensor is rounded twice
        self.register_buffer("sharpness", head.weight.new_tensor(sharpness))

    def forward(self, features: Tensor) -> Tensor:
        means = torch.addmm(self.intercept, features, self.weight)
        if not self.probabilities:
            return means
        rows = features - self.mean
        if self.portable:
            solved = self.factor @ rows.T
        else:
            solved = torch.linalg.solve_triangular(self.factor, rows.T, upper=False)
        leverage = solved.square().sum(0) + self.constant
        variance = self.noise_variance * (1.0 + leverage)
        return means * (self.sharpness / variance.sqrt()).unsqueeze(1)


class ExportedHead(nn.Module):
    """Maps, grid and heads: x `[B, ...]` to `predictive(x).mean` `[B, K]` or `predict(x)` `[B, C]`.

    Unlike the head's blocks, the batch may change the last bits of maps that are not `exact`.
    """

    weights: Tensor
    table: Tensor

    def __init__(self, head: ExactHead, probabilities: bool, portable: bool) -> None:
        super().__init__()
        if probabilities and not isinstance(head.intake.targets, Classes):
            raise ValueError("targets='values' has no probabilities: export() gives its mean")
        solution = head.solution()
        if solution is None:
            raise ValueError("nothing to export yet: update with some data first")
        self.maps = nn.ModuleList([copy.deepcopy(each) for each in head.grid.maps])
        self.heads = nn.ModuleList(
            [ExportedMap(h, solution.sharpness, probabilities, portable) for h in solution.heads]
        )
        self.limit = head.grid.limit
        self.scale = head.grid.scale
        self.floats = head.grid.padded
        self.across = head.across_tasks if probabilities else None
        self.register_buffer("weights", head.weights)
        if isinstance(head.intake.targets, Classes) and head.sums is not None:
            _, labels = tasks_and_labels(head.sums.columns)
            self.register_buffer("table", label_table(labels, head.intake.targets.labels(labels)))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() if x.dtype == torch.uint8 and self.floats else x
        pairs = zip(self.maps, self.heads, strict=True)
        values = torch.stack([head(self._features(part(x))) for part, head in pairs])
        if self.across is not None:
            values = by_label(values, self.table, self.across).softmax(-1)
        return (self.weights.view(-1, 1, 1) * values).sum(0)

    def _features(self, features: Tensor) -> Tensor:
        features = features if features.dtype == torch.float64 else features.float()
        largest = self.limit * self.scale
        return ((features * self.scale).round().clamp(-largest, largest) / self.scale).double()
