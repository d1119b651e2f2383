"""What PPO tells about its updates and its episodes."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..filters.weights import effective_sample_size
from .surrogate import TERMS


class Episode(NamedTuple):
    """A finished episode: on which level, after how many steps of PPO, its return and length."""

    level: int
    step: int
    value: float
    length: int


@dataclass(frozen=True)
class UpdateInfo:
    """What one update reports, per particle `[N]`, on the device.

    `policy`, `value`, `entropy`: the terms of the loss with their coefficients, means over all
    evaluations; `importance`: mean c; `truncated`: share of samples with pi_old / mu above the
    limit; `clipped`: share with r outside of the clip range; `divergence`: KL(pi_old, pi),
    estimated. `log_weight_parts` `[3, N]`: what policy, value and entropy added to each
    log-weight before normalisation (with `"linearized"` weights, to first order). `log_weights`
    are the raw ones after the update, `alive` who is left.
    """

    policy: Tensor
    value: Tensor
    entropy: Tensor
    importance: Tensor
    truncated: Tensor
    clipped: Tensor
    divergence: Tensor
    log_weight_parts: Tensor
    log_weights: Tensor
    alive: Tensor

    @property
    def ess(self) -> Tensor:
        return effective_sample_size(self.log_weights)

    def summary(self) -> dict[str, float]:
        """Weighted means over particles as plain numbers; waits for the device."""
        names = (*TERMS, "importance", "truncated", "clipped", "divergence")
        weights = self.log_weights.exp()
        means = {
            name: torch.where(weights > 0, weights * getattr(self, name), 0.0) for name in names
        }
        return {**{name: float(m.sum()) for name, m in means.items()}, "ess": float(self.ess)}
