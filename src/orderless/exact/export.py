"""The filter as an ordinary module, for `torch.export` and programs without this library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .evidence import HeadPosterior
from .targets import Classes, by_label, label_table

if TYPE_CHECKING:
    from .rao_blackwellized import RaoBlackwellizedFilter


class ExportedHead(nn.Module):
    """One particle's head: features `[B, M]` to means `[B, K]`, or to logits."""

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
        self.noise_variance, self.constant = head.noise_variance, head.intercept_leverage
        self.probabilities, self.portable = probabilities, portable
        if probabilities and portable:
            whole = torch.eye(len(self.mean), dtype=self.factor.dtype, device=self.factor.device)
            self.factor = torch.linalg.solve_triangular(self.factor, whole, upper=False)
        # a tensor, as in the filter: a number divided by a tensor is rounded twice
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


class ExportedFilter(nn.Module):
    """Maps, grid and heads: x `[B, ...]` to `predictive(x).mean` `[B, K]` or `predict(x)` `[B, C]`.

    Unlike the filter's blocks, the batch may change the last bits of maps that are not `exact`.
    """

    weights: Tensor
    table: Tensor

    def __init__(self, rb: RaoBlackwellizedFilter, probabilities: bool, portable: bool) -> None:
        super().__init__()
        if rb.particles.shard.group is not None:
            raise ValueError("a sharded filter cannot be exported: load its state into a whole one")
        if probabilities and not isinstance(rb.targets, Classes):
            raise ValueError("targets='values' has no probabilities: export() gives its mean")
        if not rb.heads:
            raise ValueError("nothing to export yet: update with some data first")
        maps = [rb.particles[i] for i in range(rb.particles.n)]
        self.maps = nn.ModuleList(maps).requires_grad_(False).eval()
        self.heads = nn.ModuleList(
            [ExportedHead(head, rb.sharpness, probabilities, portable) for head in rb.heads]
        )
        self.limit, self.scale, self.floats = rb.grid.limit, rb.grid.scale, rb.grid.padded
        self.across = rb.across_tasks if probabilities else None
        self.register_buffer("weights", rb.weights)
        if isinstance(rb.targets, Classes):
            _, labels = rb.tasks_and_labels()
            self.register_buffer("table", label_table(labels, rb.targets.labels(labels)))

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
