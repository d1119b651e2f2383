r"""Weights by advantage: the weighted filter with separate energies for the weights and the move.

In PPO the gradient follows the clipped surrogate loss, whose value is a poor measure of how good a
particle's policy is. Here the weights use the energies that the closure *reports* instead:

    log w_i <- log w_i - (U_i(x_t) + U_i(x_{t+1})) / 2,      U_i = -E_mu[min(pi_i / mu, 2) A]

with one advantage A shared by all particles, so that a particle gains weight by making good actions
likely and not by having a value function with small errors.
"""

from typing import Any

import torch
from torch import Tensor

from orderless.ensemble import Ensemble
from orderless.filters import (
    BootstrapParticleFilter,
    GradientStep,
    Trapezoid,
    WeightedParticleFilter,
)


class ReportedEnergies(Trapezoid):
    """The trapezoid rule over the energies U, which closures report once in every evaluation."""

    def __call__(self, step: GradientStep) -> Tensor:
        assert isinstance(step.filter, PolicyWeightedFilter)
        # the second evaluation, in `energy_after`, reports the energies again
        after, energies = step.energy_after, step.filter.energies
        half, odd = divmod(len(energies), 2)
        if half == 0 or odd:
            raise ValueError(
                "the closure must report its energies once in every evaluation: "
                f"{len(energies)} reports came from two evaluations"
            )
        total = torch.stack(energies[:half]).sum(0).double() + torch.stack(energies[half:]).sum(0)
        # a particle whose loss is not finite must die, whatever its energy
        return (-self.loss_scale / 2 * total).masked_fill(~after.isfinite(), torch.nan)


class PolicyWeightedFilter(WeightedParticleFilter):
    """Moves by the closure's losses and weighs by the energies `[N]` passed to `report`.

    Every evaluation must call it once. Options as in `WeightedParticleFilter`; trapezoid rule only.
    """

    def __init__(
        self, particles: Ensemble, optimizer: torch.optim.Optimizer, **options: Any
    ) -> None:
        if options.get("weighting", "trapezoid") != "trapezoid":
            raise ValueError(
                "PolicyWeightedFilter weighs by reported energies, which have no gradient: "
                f"weighting must be 'trapezoid', got {options['weighting']!r}"
            )
        super().__init__(particles, optimizer, **options)
        self.weighting = ReportedEnergies(self.loss_scale)
        self.energies: list[Tensor] = []

    def report(self, energies: Tensor) -> None:
        """Report the energies U_i `[N]` of the particles as they are; call it in the closure."""
        self.energies.append(energies.detach())

    def transaction(self, *args: Any, **options: Any) -> GradientStep:
        self.energies = []
        return super().transaction(*args, **options)


class LineageBootstrapFilter(BootstrapParticleFilter):
    """The bootstrap filter with a record of each particle's ancestor.

    After resampling, particle i may be a copy of another. The quantities recorded per particle
    during collection (log pi_old, advantages) are in its ancestor's row, `lineage[i]`.
    """

    def __init__(self, particles: Ensemble, **options: Any) -> None:
        super().__init__(particles, **options)
        self.lineage = torch.arange(particles.n, device=particles.device)

    def begin_lineage(self) -> None:
        """Make every particle its own ancestor."""
        self.lineage.copy_(torch.arange(self.particles.n, device=self.lineage.device))

    def travelling(self) -> list[Tensor]:
        return [*super().travelling(), self.lineage]
