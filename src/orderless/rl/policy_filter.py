r"""Weights by advantage: the weighted filter with another energy for the weights than for the move.

In PPO the gradient follows the clipped surrogate loss, whose value says little about how good a
particle's policy is. Here the weights see what the closure *reports* instead:

    log w_i <- log w_i - (U_i(x_t) + U_i(x_{t+1})) / 2,      U_i = -E_mu[min(pi_i / mu, 2) A]

with one advantage A shared by all particles, so that a particle gains weight by making good actions
likely and not by having a value function with small errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..filters import BootstrapParticleFilter, StepInfo, WeightedParticleFilter
from ..filters.stepping import Closure, sum_of
from ..particles import Ensemble


class PolicyWeightedFilter(WeightedParticleFilter):
    """Moves by the closure's losses, weighs by the energies `[N]` the closure hands to `report`.

    Each evaluation of a closure must report once. Options as in `WeightedParticleFilter`, whose
    trapezoid rule is the only one that makes sense here.
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
        self._energies: list[Tensor] = []

    def report(self, energies: Tensor) -> None:
        """The energies U_i `[N]` where particles stand now; called inside the closure."""
        self._energies.append(energies.detach())

    def _advance(self, closures: Sequence[Closure], penalty: Closure | None) -> StepInfo:
        self._energies = []
        return super()._advance(closures, penalty)

    def _weigh(
        self, losses: Tensor, again: Tensor | None, slope: Tensor | None, alive: Tensor
    ) -> Tensor:
        assert again is not None
        half, odd = divmod(len(self._energies), 2)
        if half == 0 or odd:
            raise ValueError(
                "the closure must report its energies once in every evaluation: "
                f"{len(self._energies)} reports came from two evaluations"
            )
        # a particle whose loss has become infinite must not live on by its energy
        alive = alive & again.isfinite()
        before, after = sum_of(self._energies[:half]), sum_of(self._energies[half:])
        return super()._weigh(before, after, None, alive)


class LineageBootstrapFilter(BootstrapParticleFilter):
    """The bootstrap filter that remembers whose copy each particle is.

    After resampling, particle i may be a copy of another. What was recorded per particle when
    experience was collected (log pi_old, advantages) stands in its ancestor's row, `lineage[i]`.
    """

    def __init__(self, particles: Ensemble, **options: Any) -> None:
        super().__init__(particles, **options)
        self.lineage = torch.arange(particles.n, device=particles.device)

    def begin_lineage(self) -> None:
        """From now on everybody is their own ancestor."""
        self.lineage.copy_(torch.arange(self.particles.n, device=self.lineage.device))

    def _particle_tensors(self) -> list[Tensor]:
        return [*super()._particle_tensors(), self.lineage]
