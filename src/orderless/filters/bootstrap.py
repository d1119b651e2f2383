"""Particle filters without gradients: resample, perturb, weigh.

`variant="sir"` is the textbook filter (sampling importance resampling): particles move by noise of
variance q, are weighted by e^{-L}, and are resampled when the ESS is small. It converges to the
Bayesian posterior of a parameter that drifts with process noise q.

`variant="paper"` is the paper's baseline: resample by w e^{-L}, perturb, then weigh by e^{-L} at
the new position. It uses every loss twice, so with small noise it converges to the posterior of the
data counted twice, p_0(x) e^{-2 sum L(x)}.

Four schemes draw N particles from N weighted ones: `scheme(weights, uniforms) -> indices`, with
weights `[N]` that sum to one and uniforms `[N]` in (0, 1). All are unbiased: particle i is drawn
N w_i times on average. The variance differs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cuda import fused
from ..ensemble import Ensemble, Perturb, random
from ..ensemble.device import matrix_precision
from ..ensemble.ensemble import Draws
from ..ensemble.stacking import per_particle_view
from .base import Closure, ParticleFilter, StepInfo
from .weights import effective_sample_size, normalize

_RESAMPLING = 1 << 20  # separate random streams, distinct from those of dropout
_NOISE = 1 << 21


def _inverse_cdf(weights: Tensor, points: Tensor) -> Tensor:
    """For each point in (0, 1), the particle whose share of the unit interval contains it."""
    cumulative = weights.cumsum(0)
    # below 1, where float32 rounds some uniforms to: nothing with a weight lies beyond
    points = points.clamp(max=1.0 - torch.finfo(points.dtype).eps / 2)
    return torch.searchsorted(cumulative / cumulative[-1], points, right=True)


def multinomial(weights: Tensor, uniforms: Tensor) -> Tensor:
    """N independent draws: the textbook scheme, with the largest variance."""
    return _inverse_cdf(weights, uniforms.to(weights))


def stratified(weights: Tensor, uniforms: Tensor) -> Tensor:
    """One draw in each of N equal strata of the unit interval."""
    n = len(weights)
    strata = torch.arange(n, device=weights.device)
    return _inverse_cdf(weights, (strata + uniforms.to(weights)) / n)


def systematic(weights: Tensor, uniforms: Tensor) -> Tensor:
    """One draw, repeated at distance 1/N: counts are the floor or the ceiling of N w_i."""
    return stratified(weights, uniforms[:1].expand(len(weights)))


def residual(weights: Tensor, uniforms: Tensor) -> Tensor:
    """floor(N w_i) certain copies; the rest are independent draws from the remaining weights."""
    n = len(weights)
    expected = n * weights
    certain = (expected * (1 + 1e-12)).floor()  # a share of 1 may be rounded to just below it
    slots = torch.arange(n, device=weights.device)
    copied = torch.searchsorted(certain.cumsum(0), slots.to(weights), right=True).clamp_(max=n - 1)
    leftover = (expected - certain).clamp(min=0.0)
    total = leftover.sum()
    share = torch.where(total > 0, leftover / total, weights)
    return torch.where(slots < certain.sum(), copied, multinomial(share, uniforms))


SCHEMES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    scheme.__name__: scheme for scheme in (systematic, stratified, multinomial, residual)
}


class BootstrapParticleFilter(ParticleFilter):
    """Resampling and random moves; no gradients are computed.

    Args:
        perturbation: the standard deviation of the noise added to every parameter per step, or an
            `ol.Perturb` (a radius drawn per tensor and particle). Frozen parameters do not move.
        resampling: `"systematic"`, `"stratified"`, `"multinomial"` or `"residual"`.
        variant: `"sir"`: perturb by noise, weigh by e^{-L}, resample when the ESS is small.
            `"paper"`: resample by w e^{-L}, perturb, weigh by e^{-L}; this counts the data twice.
        ess_threshold: `"sir"` resamples when the ESS falls below it (default N/2).
        options: `link`, `min_ess` and `check_every`, as in every filter.

    >>> import torch, orderless as ol
    >>> x, y = torch.ones(16, 1), torch.full((16, 1), 0.5)
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(1, 1), n=200, seed=0)
    >>> pf = ol.BootstrapParticleFilter(particles, perturbation=0.02, link="identity")
    >>> loss = ol.per_particle(torch.nn.functional.mse_loss)
    >>> for _ in range(30):
    ...     info = pf.step(lambda: 10 * loss(particles(x), y))
    >>> bool((pf.predict(x) - 0.5).abs().max() < 0.1)
    True
    """

    def __init__(
        self,
        particles: Ensemble,
        *,
        perturbation: float | Perturb,
        resampling: str = "systematic",
        variant: str = "sir",
        ess_threshold: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(particles, **options)
        if resampling not in SCHEMES:
            raise ValueError(f"resampling must be one of {', '.join(SCHEMES)}, got {resampling!r}")
        if variant not in ("paper", "sir"):
            raise ValueError(f"variant must be 'paper' or 'sir', got {variant!r}")
        if ess_threshold is not None and variant == "paper":
            raise ValueError("ess_threshold belongs to variant='sir': 'paper' always resamples")
        if not isinstance(perturbation, Perturb):
            perturbation = Perturb(perturbation, perturbation)
        self.perturbation = perturbation
        self.resampling = resampling
        self.variant = variant
        self.ess_threshold = particles.n / 2 if ess_threshold is None else ess_threshold

    def recorded_settings(self) -> tuple[Any, ...]:
        return self.perturbation, self.resampling, self.variant, self.ess_threshold

    @torch.no_grad()
    def advance(self, closures: Sequence[Closure], penalty: Closure | None = None) -> StepInfo:
        """Resample, perturb, weigh, in the order of the variant."""
        if penalty is not None:
            raise ValueError("a filter without gradients has no use for a penalty")
        draws = Draws(self.particles)
        start = [parameter.clone() for parameter in self.particles.parameters()]
        steps = self.steps + 1
        after = None
        with matrix_precision(self.particles.precision, self.particles.device):
            try:
                if self.variant == "sir":
                    self._perturb()
                before = self._losses(closures)
                self.living(before)
            except BaseException:
                draws.rewind()
                for parameter, value in zip(self.particles.parameters(), start, strict=True):
                    parameter.copy_(value)
                raise
            self._weigh(before)
            if self.variant == "sir":
                self._resample(effective_sample_size(self.raw_log_weights) < self.ess_threshold)
            else:
                self._resample(torch.ones_like(self._failed))
                self._perturb()
                with draws.again():
                    after = self._losses(closures)
                self._weigh(after)
        self.steps.copy_(steps)  # one step, though "paper" weighs twice
        self.alive.fill_(True)  # a particle of weight 0 is not dead: resampling replaces it
        log_weights = self.raw_log_weights
        return StepInfo(before, after, None, ~log_weights.isneginf(), log_weights)

    def _losses(self, closures: Sequence[Closure]) -> Tensor:
        """L at the present positions: `[N]`."""
        return torch.stack([self.evaluate(closure)[0] for closure in closures]).sum(0)

    def _weigh(self, losses: Tensor) -> None:
        """log w <- log w - L."""
        self.reweigh(-losses.double(), losses.isfinite())

    def travelling(self) -> list[Tensor]:
        """The tensors `[N, ...]` that are copied when one particle replaces another."""
        return [*self.particles.parameters(), *self.particles.particle_buffers().values()]

    def _keys(self, stream: int, indices: Tensor) -> Tensor:
        return random.particle_keys(self.particles.seed, self.steps, indices, stream)

    def _resample(self, wanted: Tensor) -> None:
        """Replace particles by draws from the weighted set if `wanted`, a bool tensor."""
        if wanted.device.type == "cpu" and not wanted.item():
            return
        uniforms = random.uniform(self._keys(_RESAMPLING, self.particles.indices), ())
        chosen = SCHEMES[self.resampling](self.raw_log_weights.exp(), uniforms)
        everyone = torch.arange(self.particles.n, device=self.particles.device)
        chosen = torch.where(wanted, chosen, everyone)
        for tensor in self.travelling():
            tensor.copy_(tensor[chosen])
        uniform, _ = normalize(torch.zeros_like(self.raw_log_weights))
        self.raw_log_weights.copy_(torch.where(wanted, uniform, self.raw_log_weights))

    def _perturb(self) -> None:
        low, high = self.perturbation.low, self.perturbation.high
        for number, parameter in enumerate(self.particles.parameters()):
            if not parameter.requires_grad:
                continue
            keys = self._keys(_NOISE + number, self.particles.indices)
            radius = low + (high - low) * random.uniform(random.mix(keys), ())
            if fused.can_add_normal(parameter):
                fused.add_normal(parameter, keys, radius)
                continue
            noise = random.normal(keys, tuple(parameter.shape[1:]))
            parameter.add_(per_particle_view(radius, noise) * noise)
