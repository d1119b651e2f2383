r"""The paper's filter: gradient steps, weighted by how well each particle explained the data.

With $\tilde p_t(x) = \sum_i w_t^{(i)} N(x; x_t^{(i)}, \sigma^2 I)$ as the prior and the likelihood
$e^{-L(x)}$, linearising L at each particle gives the posterior in the same form (section 3.4):

    x_{t+1} = x_t - sigma^2 grad L(x_t)
    log w_{t+1} = log w_t - (L(x_t) + L(x_{t+1})) / 2

For linear losses this is the exact Bayes update, in any order of the data. For smooth losses two
orders of two batches differ by O(sigma^4).

Differences from the paper's code: weights are normalised float64 logarithms; every particle has its
own BatchNorm statistics; a particle with a non-finite loss dies instead of spreading NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..particles import Ensemble
from .gradient import GradientFilter


class WeightedParticleFilter(GradientFilter):
    """Particles move by gradient descent and are reweighted by their losses.

    Args:
        particles: an `ol.Ensemble`.
        optimizer: any torch optimizer over `particles.parameters()` that moves every number by
            itself (Adafactor, LBFGS and Muon do not). With plain SGD, lr is the paper's sigma^2
            and weights and evidence are those of the Gaussian mixture; with any other optimizer
            they are a heuristic of the same form.
        weighting: `"trapezoid"` evaluates the loss again at the new position (the paper's);
            `"linearized"` uses log w -= L_old + <g, x_new - x_old> / 2 from the displacement that
            happened, without a second forward pass. They agree where the loss is linear.
        loss_scale: multiplies the loss in the weights only. A batch *mean* as loss tempers the
            posterior by 1/B; `loss_scale=B` undoes that. 1 is the paper's.
        min_ess: temper weights on read so that at least so many particles count.
        max_grad_norm: clip each particle's gradient norm by itself.
        weigh_penalty: let the weights see the penalty too.
        link: from outputs to predictions: `"softmax"`, `"identity"` or a function.
    """

    def __init__(
        self,
        particles: Ensemble,
        optimizer: torch.optim.Optimizer,
        *,
        weighting: str = "trapezoid",
        loss_scale: float = 1.0,
        **options: Any,
    ) -> None:
        if weighting not in ("trapezoid", "linearized"):
            raise ValueError(f"weighting must be 'trapezoid' or 'linearized', got {weighting!r}")
        if not loss_scale > 0:
            raise ValueError(f"loss_scale must be positive, got {loss_scale}")
        super().__init__(particles, optimizer, **options)
        self.weighting, self.loss_scale = weighting, loss_scale
        self.evaluates_twice = weighting == "trapezoid"
        self.linearizes = weighting == "linearized"

    def _weigh(
        self, losses: Tensor, again: Tensor | None, slope: Tensor | None, alive: Tensor
    ) -> Tensor:
        old = losses.double()
        if again is not None:
            twice = old + again
        else:
            assert slope is not None
            twice = 2 * old + slope
        return self._reweigh(-self.loss_scale / 2 * twice, alive)
