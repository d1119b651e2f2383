r"""The paper's filter: gradient steps, weighted by how well each particle explained the data.

With $\tilde p_t(x) = \sum_i w_t^{(i)} N(x; x_t^{(i)}, \sigma^2 I)$ as the prior and the likelihood
$e^{-L(x)}$, linearising L at each particle gives the posterior in the same form (Algorithm 1 and
section 3.4 of arXiv:2410.22695):

    x_{t+1} = x_t - sigma^2 grad L(x_t)
    log w_{t+1} = log w_t - (L(x_t) + L(x_{t+1})) / 2

For linear losses this is the exact Bayes update, in any order of the data. For smooth losses two
orders of two batches differ by O(sigma^4).

Differences from the paper's code: weights are normalised float64 logarithms; every particle has its
own BatchNorm statistics; a particle with a non-finite loss dies instead of spreading NaN.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..ensemble import Ensemble
from .gradient import GradientFilter, GradientStep, Weighting


@dataclass(frozen=True)
class Trapezoid(Weighting):
    """log w -= (L(x_t) + L(x_{t+1})) / 2: the loss is evaluated at both ends (the paper's)."""

    reads = "energy_after"
    loss_scale: float = 1.0

    def __call__(self, step: GradientStep) -> Tensor:
        return -self.loss_scale / 2 * (step.energy_before + step.energy_after)


@dataclass(frozen=True)
class Linearized(Weighting):
    """log w -= L(x_t) + <grad L, x_{t+1} - x_t> / 2: no second evaluation."""

    reads = "slope"
    loss_scale: float = 1.0

    def __call__(self, step: GradientStep) -> Tensor:
        return -self.loss_scale / 2 * (2 * step.energy_before + step.slope)


WEIGHTINGS: dict[str, type[Trapezoid] | type[Linearized]] = {
    "trapezoid": Trapezoid,
    "linearized": Linearized,
}


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
        min_ess: temper weights on read so that at least this many particles count.
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
        if weighting not in WEIGHTINGS:
            raise ValueError(f"weighting must be 'trapezoid' or 'linearized', got {weighting!r}")
        if not loss_scale > 0:
            raise ValueError(f"loss_scale must be positive, got {loss_scale}")
        rule = WEIGHTINGS[weighting](loss_scale)
        super().__init__(particles, optimizer, weighting=rule, **options)

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by in the weights."""
        assert isinstance(self.weighting, Trapezoid | Linearized)
        return self.weighting.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        assert isinstance(self.weighting, Trapezoid | Linearized)
        self.weighting = replace(self.weighting, loss_scale=value)
