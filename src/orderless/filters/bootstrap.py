"""Particle filters without gradients: resample, perturb, weigh.

`variant="sir"` is the textbook filter (sampling importance resampling): particles move by noise of
variance q, are weighted by e^{-L}, and are resampled when few of them count. It converges to the
Bayesian posterior of a parameter that drifts with process noise q.

`variant="paper"` is the paper's baseline: resample by w e^{-L}, perturb, then weigh by e^{-L} at
the new place. It uses every loss twice, so with small noise it converges to the posterior of the
data counted twice, p_0(x) e^{-2 sum L(x)}.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..particles import Ensemble, Perturb, random
from ..particles.kernels import fused
from ..particles.parameter import per_particle_view
from .base import Link
from .resampling import SCHEMES
from .stepping import Closure, StepInfo, SteppedFilter, sum_of
from .weights import effective_sample_size, normalize

_RESAMPLING = 1 << 20  # random streams of their own, apart from the networks' dropout
_NOISE = 1 << 21


class BootstrapParticleFilter(SteppedFilter):
    """Resampling and random moves; no gradient is ever taken.

    Args:
        perturbation: the standard deviation of the noise added to every parameter per step, or an
            `ol.Perturb` (a radius drawn per tensor and particle). Frozen parameters stay.
        resampling: `"systematic"`, `"stratified"`, `"multinomial"` or `"residual"`.
        variant: `"sir"` or `"paper"`, see the module's text.
        ess_threshold: `"sir"` resamples when the ESS falls below it (default N/2).
    """

    def __init__(
        self,
        particles: Ensemble,
        *,
        perturbation: float | Perturb,
        resampling: str = "systematic",
        variant: str = "paper",
        ess_threshold: float | None = None,
        link: Link = "softmax",
        min_ess: float | None = None,
        check_every: int = 100,
    ) -> None:
        super().__init__(particles, link=link, min_ess=min_ess, check_every=check_every)
        if resampling not in SCHEMES:
            raise ValueError(f"resampling must be one of {', '.join(SCHEMES)}, got {resampling!r}")
        if variant not in ("paper", "sir"):
            raise ValueError(f"variant must be 'paper' or 'sir', got {variant!r}")
        if ess_threshold is not None and variant == "paper":
            raise ValueError("ess_threshold belongs to variant='sir': 'paper' always resamples")
        if not isinstance(perturbation, Perturb):
            perturbation = Perturb(perturbation, perturbation)
        self.perturbation, self.resampling, self.variant = perturbation, resampling, variant
        self.ess_threshold = particles.n / 2 if ess_threshold is None else ess_threshold
        self._everyone = torch.arange(particles.n, device=particles.device)  # on all ranks

    @torch.no_grad()
    def _advance(self, closures: Sequence[Closure], penalty: Closure | None) -> StepInfo:
        if penalty is not None:
            raise ValueError("a filter without gradients has no use for a penalty")
        tensors = [*self._particle_tensors(), *self._tensors().values()]
        old = [tensor.clone() for tensor in tensors]
        draw, steps = self.particles._draws.clone(), self.steps + 1
        try:
            with self._precision():
                before, after = self._move(closures, draw)
        except BaseException:
            self._put_back(tensors, old, torch.zeros_like(self._failed))
            raise
        self.steps.copy_(steps)  # one step, though "paper" weighs twice
        self._put_back(tensors, old, ~self._failed)
        self.alive.fill_(True)  # a particle of weight 0 is not dead: resampling replaces it
        log_weights = self.raw_log_weights
        return StepInfo(before, after, None, ~log_weights.isneginf(), log_weights)

    def _move(self, closures: Sequence[Closure], draw: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.variant == "sir":
            self._perturb()
            losses = self._sum(closures)
            self._reweigh(-losses.double(), losses.isfinite())
            self._resample(effective_sample_size(self.raw_log_weights) < self.ess_threshold)
            return losses, None
        noise = self._noise()
        before = self._sum(closures)
        self._reweigh(-before.double(), before.isfinite())
        self._resample(torch.ones_like(self._failed))
        self._perturb()
        after = sum_of(self._losses_again(closures, draw, noise))
        self._reweigh(-after.double(), after.isfinite())
        return before, after

    def _sum(self, closures: Sequence[Closure]) -> Tensor:
        return self.particles.shard.gather(sum_of([self._losses(each) for each in closures]))

    def _particle_tensors(self) -> list[Tensor]:
        return [*self.particles.parameters(), *self.particles.particle_buffers().values()]

    def _put_back(self, tensors: list[Tensor], old: list[Tensor], keep: Tensor) -> None:
        if keep.device.type == "cpu" and keep.item():
            return
        for tensor, before in zip(tensors, old, strict=True):
            tensor.copy_(torch.where(keep, tensor, before))

    def _keys(self, stream: int, indices: Tensor) -> Tensor:
        return random.particle_keys(self.particles.seed, self.steps, indices, stream)

    def _resample(self, wanted: Tensor) -> None:
        """Replace particles by draws from the weighted set, where `wanted` (a scalar) is true."""
        if wanted.device.type == "cpu" and not wanted.item():
            return
        uniforms = random.uniform(self._keys(_RESAMPLING, self._everyone), ())
        chosen = SCHEMES[self.resampling](self.raw_log_weights.exp(), uniforms)
        chosen = torch.where(wanted, chosen, self._everyone)
        self.particles.shard.exchange(self._particle_tensors(), chosen)
        uniform, _ = normalize(torch.zeros_like(self.raw_log_weights))
        self.raw_log_weights.copy_(torch.where(wanted, uniform, self.raw_log_weights))

    def _perturb(self) -> None:
        low, high = self.perturbation.low, self.perturbation.high
        for number, parameter in enumerate(self.particles.parameters()):
            if not parameter.requires_grad:
                continue
            keys = self._keys(_NOISE + number, self.particles._indices)
            radius = low + (high - low) * random.uniform(random.mix(keys), ())
            if fused.can_add_normal(parameter):
                fused.add_normal(parameter, keys, radius)
                continue
            noise = random.normal(keys, tuple(parameter.shape[1:]))
            parameter.add_(per_particle_view(radius, noise) * noise)
