r"""The Gaussian-sum filter: every particle has its own precision.

The paper's filter treats each particle as a Gaussian N(x, sigma^2 I) of constant width, and the
loss as linear. Here the loss is treated as quadratic, with curvature H, and the Gaussian is
N(x, P^-1). The product of the two is Gaussian again (Alspach and Sorenson, 1972):

    P' = P + H
    x' = x - P'^-1 g                                   g = grad L(x)
    log w' = log w - L(x) + g^T P'^-1 g / 2 - log(|P'| / |P|) / 2

P starts as I / sigma^2. For quadratic losses this is the exact Bayes update, in any order of the
data. With H = 0 it is the paper's filter with its linearised weights. Since P only grows, steps
shrink like 1/t: the filter averages over its past instead of following the latest batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.parameter import per_particle_view
from . import curvature as second
from .step import Closure, Step, StepInfo, SteppedFilter, added

_LARGEST_FULL = 2000


class GaussianSumFilter(SteppedFilter):
    """Particles with their own precision; each step is a Newton step weighted by its evidence.

    A closure returns losses `[N]`, or `(losses, outputs)` with the outputs `[N, B, C]` that they
    were computed from. Losses should be *sums* of negative log-likelihoods: the mean over a batch
    of B counts as one B-th of the data, in weights and in precision.

    Args:
        sigma2: the initial variance of every particle; with `"none"` it stays (the paper's sigma^2
            and the learning rate).
        curvature: the matrix H. `"none"`: 0. `"diagonal"`: for networks; with outputs the
            generalised Gauss-Newton diagonal by random probes, never negative; from losses alone
            the Hessian's diagonal (exact if it is diagonal), with negative entries set to 0.
            `"full"`: up to 2,000 parameters; with outputs the exact Gauss-Newton matrix, from
            losses alone the exact Hessian, or its positive part if P + H is not positive definite.
        probes: random probes per step for `"diagonal"`.
        options: `link`, `min_ess` and `check_every`, as in every filter.
    """

    recorded_by = ("curvature", "probes")

    def __init__(
        self,
        particles: Ensemble,
        *,
        sigma2: float,
        curvature: str = "none",
        probes: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(particles, **options)
        if curvature not in ("none", "diagonal", "full"):
            raise ValueError(f"curvature must be 'none', 'diagonal' or 'full', got {curvature!r}")
        if not sigma2 > 0:
            raise ValueError(f"sigma2 must be positive, got {sigma2}")
        if probes < 1:
            raise ValueError(f"probes must be at least 1, got {probes}")
        self.sigma2, self.curvature, self.probes = float(sigma2), curvature, probes
        self.recordable = curvature == "none"  # factorisations synchronise with the host
        moving = self._moving()
        self._rows = set(moving)  # parameters that have rows of P
        size = sum(p[0].numel() for p in moving.values())
        if size == 0:
            raise ValueError("no parameter of the particles requires a gradient")
        if curvature == "full" and size > _LARGEST_FULL:
            raise ValueError(
                f"curvature='full' keeps a matrix of all parameters, at most {_LARGEST_FULL} of "
                f"them, and this network has {size}: use curvature='diagonal'"
            )
        real: Any = {"dtype": torch.float64, "device": particles.device}
        n = particles.shard.count
        if curvature == "full":
            self.precision = torch.eye(size, **real).repeat(n, 1, 1) / self.sigma2  # P [N, d, d]
        else:
            shape = (n, size) if curvature == "diagonal" else (1, 1)
            self.precision = torch.full(shape, 1.0 / self.sigma2, **real)  # P [N, d]

    def _moving(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.particles.named_parameters() if p.requires_grad}

    def _check_moving(self, moving: dict[str, nn.Parameter]) -> None:
        """Raise if other parameters require gradients than when P was made."""
        changed = sorted(self._rows ^ moving.keys()) if self.curvature != "none" else ()
        for name in changed:
            what = "requires a gradient" if name in moving else "has been frozen"
            raise ValueError(
                f"{name!r} {what} since the filter was made, and its precision is of other "
                "parameters: choose what to freeze first, then make the filter"
            )

    def advance(self, closures: Sequence[Closure], penalty: Closure | None = None) -> StepInfo:
        if penalty is not None:
            raise ValueError("this filter takes no penalty: its precision stands for past data")
        moving, shard = self._moving(), self.particles.shard
        self._check_moving(moving)
        parameters = list(moving.values())
        keys = second.probe_keys(self.particles.seed, self.steps, self.particles.indices)
        with self.transaction(closures) as step:
            with torch.enable_grad():
                parts = [self._expansion(step, closure, parameters, keys) for closure in closures]
            with torch.no_grad():
                losses, gradient = added([p[0] for p in parts]), added([p[1] for p in parts])
                curved = [p[2] for p in parts if p[2] is not None]
                total = added(curved) if curved else None
                precision, displacement, gain = self._update(gradient, total)
                finite = losses.isfinite() & displacement.isfinite().all(1) & gain.isfinite()
                losses, gain, finite = (shard.gather(each) for each in (losses, gain, finite))
                step.loss_before, step.alive = losses, self.alive & finite
                step.hold(*parameters, self.precision)
                pieces = displacement.split([p[0].numel() for p in parameters], dim=1)
                for parameter, piece in zip(parameters, pieces, strict=True):  # x' = x - P'^-1 g
                    parameter.copy_(parameter.double() - piece.view_as(parameter))
                self.precision.copy_(precision)
            step.commit(gain - losses.double())
        return step.info

    def _expansion(
        self, step: Step, closure: Closure, parameters: list[nn.Parameter], keys: second.Keys
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """L `[N]`, g `[N, d]` and H (`[N, d, d]`, `[N, d]` or None) at the present positions."""
        losses, outputs = step.differentiable(closure)
        full, curves = self.curvature == "full", self.curvature != "none"
        twice = curves and outputs is None
        gradients = second.derivatives(losses, parameters, create_graph=twice)
        curved, probes = None, (keys, self.probes)
        if twice:
            known = gradients, parameters
            curved = second.hessian(*known) if full else second.hessian_diagonal(*known, *probes)
        elif curves:
            seen = losses, _rows(outputs, self.particles.shard.count), parameters
            diagonal = second.gauss_newton_diagonal
            curved = second.gauss_newton(*seen) if full else diagonal(*seen, *probes)
        return losses.detach(), second.flatten(gradients), curved

    def _update(self, gradient: Tensor, curved: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """P', P'^-1 g `[N, d]` and g^T P'^-1 g / 2 - log(|P'|/|P|) / 2 `[N]`."""
        if curved is not None and self.curvature == "full":
            return self._update_full(gradient, curved)
        precision = self.precision if curved is None else self.precision + curved
        step = gradient / precision
        gain = (gradient * step).sum(1) / 2
        if curved is not None:
            gain = gain - torch.log1p(curved / self.precision).sum(1) / 2
        return precision, step, gain

    def _update_full(self, gradient: Tensor, curved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        finite = per_particle_view(curved.isfinite().flatten(1).all(1), curved)
        curved = torch.where(finite, curved, 0.0)
        factor, failed = torch.linalg.cholesky_ex(self.precision + curved)
        if failed.any():
            values, vectors = torch.linalg.eigh(curved)
            positive = (vectors * values.clamp(min=0.0).unsqueeze(1)) @ vectors.mT
            curved = torch.where(per_particle_view(failed > 0, curved), positive, curved)
            factor = torch.linalg.cholesky_ex(self.precision + curved)[0]
        step = torch.cholesky_solve(gradient.unsqueeze(2), factor).squeeze(2)
        before = torch.linalg.cholesky_ex(self.precision)[0]
        growth = _log_determinant(factor) - _log_determinant(before)
        gain = (gradient * step).sum(1) / 2 - growth / 2
        return self.precision + curved, step, torch.where(finite.view(-1), gain, torch.nan)

    def tensors(self) -> dict[str, Tensor]:
        shared = {"precision": self.precision} if self.curvature == "none" else {}
        return {**super().tensors(), **shared}

    def particle_tensors(self) -> dict[str, Tensor]:
        return {} if self.curvature == "none" else {"precision": self.precision}

    def check_state(self, state: Mapping[str, Any]) -> None:
        theirs, ours = getattr(state.get("precision"), "shape", None), self.precision.shape
        if theirs is not None and theirs[1:] != ours[1:]:
            raise ValueError(
                f"this state has a precision of shape {tuple(theirs)}: it was made with another "
                f"curvature than {self.curvature!r}"
            )
        super().check_state(state)


def _rows(outputs: Any, n: int) -> Tensor:
    if not isinstance(outputs, Tensor) or outputs.dim() < 2 or outputs.shape[0] != n:
        raise ValueError(f"outputs must be a tensor [N, B, C] with N={n}, as particles(x) returns")
    return outputs if outputs.dim() == 3 else outputs.reshape(n, outputs.shape[1], -1)


def _log_determinant(factor: Tensor) -> Tensor:
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
