"""How sure is sure: one temperature per particle, from a sample of the data that has no order.

Second moments cannot tell how confident scores should be: the Gaussian model's own answer,
softmax(f / variance), is far too sure of itself on images. So a few samples are kept, as features
on the grid: those whose features have the smallest hash. That is a uniform sample of the data, the
same for any order, batching or sharding, and two such samples merge into that of the union (a
bottom-k sketch). The head was fitted to these samples too, but a ridge regression knows its
leave-one-out predictions in closed form, f_-i = f_i - h_i / (1 - h_i) (y_i - f_i) with leverage h,
and the temperature maximises *their* log-likelihood.

The temperature never changes which class is the most probable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .evidence import HeadPosterior, maximize
from .statistics import Column

DEFAULT_SHARPNESS = 1.702  # a logistic with this slope is a normal distribution function


@dataclass(frozen=True)
class CalibrationSample:
    """k samples: hashes `[k]` ascending, columns `[k, 2]` (task, label), features `[N, k, M]`."""

    hashes: Tensor
    columns: Tensor
    features: Tensor

    @classmethod
    def empty(cls, n: int, features: int, device: torch.device) -> CalibrationSample:
        whole: Any = {"dtype": torch.int64, "device": device}
        return cls(
            torch.zeros(0, **whole),
            torch.zeros(0, 2, **whole),
            torch.zeros(n, 0, features, device=device),
        )

    def offered(
        self, hashes: Tensor, features: Tensor, columns: Tensor, size: int
    ) -> CalibrationSample:
        """The sample after more data: hashes `[B]`, features `[N, B, M]`, columns `[B, 2]`."""
        if len(self.hashes) == size:
            closer = hashes < self.hashes[-1]
            if not closer.any():
                return self
            hashes, columns, features = hashes[closer], columns[closer], features[:, closer]
        return self.plus(CalibrationSample(hashes, columns, features.float()), size)

    def plus(self, other: CalibrationSample, size: int) -> CalibrationSample:
        """The `size` smallest hashes of both; equal hashes are equal samples."""
        device = self.hashes.device
        hashes = torch.cat([self.hashes, other.hashes.to(device)])
        chosen = hashes.argsort(stable=True)[:size]
        return CalibrationSample(
            hashes[chosen],
            torch.cat([self.columns, other.columns.to(device)])[chosen],
            torch.cat([self.features, other.features.to(device)], dim=1)[:, chosen],
        )

    def sharpness(self, head: HeadPosterior, columns: list[Column], particle: int) -> float:
        """The factor on f / sqrt(variance) under which left-out samples are most probable."""
        if len(self.hashes) == 0 or len(columns) < 2:
            return DEFAULT_SHARPNESS
        place = {column: index for index, column in enumerate(columns)}
        labels = torch.tensor([place[(int(t), int(c))] for t, c in self.columns.tolist()])
        rows, labels = self.features[particle].double(), labels.to(self.hashes.device)
        leverage = head.leverage(rows).clamp(max=1.0 - 1e-6)
        left_out = (leverage / (1.0 - leverage)).unsqueeze(1)
        outputs = head.outputs(rows)
        targets = torch.nn.functional.one_hot(labels, len(columns))
        outputs = outputs - left_out * (targets - outputs)
        scores = outputs / (head.noise_variance * (1.0 + left_out)).sqrt()

        def log_likelihood(log_sharpness: float) -> float:
            logits = math.exp(log_sharpness) * scores
            return -torch.nn.functional.cross_entropy(logits, labels).item()

        # Never surer than the Gaussian model itself, whose logits are f / variance.
        surest = max(-0.5 * math.log(head.noise_variance), -1.0)
        start = min(math.log(DEFAULT_SHARPNESS), surest)
        return math.exp(maximize(log_likelihood, start, -3.0, surest, step=0.7, tolerance=1e-4))

    def state_dict(self) -> dict[str, Any]:
        return {
            "hashes": self.hashes.clone(),
            "columns": self.columns.clone(),
            "features": self.features.clone(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> CalibrationSample:
        return cls(*[state[name].to(device).clone() for name in ("hashes", "columns", "features")])


def content_hash(whole: Tensor, columns: Tensor) -> Tensor:
    """A 63-bit hash of each row of whole numbers `[B, M]` and its column `[B, 2]`: `[B]`, int64.

    A random linear function modulo 2^64, then scrambled; integer arithmetic, so every device and
    every batch gives the same.
    """
    generator = torch.Generator().manual_seed(0x0FDE)
    width = whole.shape[1] + 2
    factors = torch.randint(-(1 << 62), 1 << 62, (width,), generator=generator) | 1
    numbers = torch.cat([whole.to(torch.int64), columns], dim=1)
    bits = (numbers * factors.to(whole.device)).sum(1)
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (bits ^ ((bits >> 31) & ((1 << 33) - 1))) & ((1 << 63) - 1)
