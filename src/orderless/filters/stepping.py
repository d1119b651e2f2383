"""The closure contract: how a filter asks for losses, and what it does when they are not there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..particles import Ensemble
from ..particles.precision import matrix_precision
from . import fused
from .base import Link, ParticleFilter
from .compiled import CompiledStep
from .weights import effective_sample_size, is_finite, normalize

Closure = Callable[[], Tensor]


@dataclass(frozen=True)
class StepInfo:
    """What one step reports; tensors stay on the device.

    `loss_before` `[N]` at the old positions, `loss_after` `[N]` at the new ones (None where the
    filter does not look again), `penalty` `[N]` or None, `alive` `[N]`, and the raw `log_weights`
    `[N]` after the step with their `ess`.
    """

    loss_before: Tensor
    loss_after: Tensor | None
    penalty: Tensor | None
    alive: Tensor
    log_weights: Tensor

    @property
    def ess(self) -> Tensor:
        return effective_sample_size(self.log_weights)

    def copied(self) -> StepInfo:
        """With tensors of its own: a step hands out its working memory."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: v.clone() for k, v in tensors.items() if v is not None})


class SteppedFilter(ParticleFilter, ABC):
    """A filter fed by closures. Subclasses say in `_advance` what one step does.

    A closure computes N losses (`[N]`, float32 or float64) and nothing else: it does not call
    backward, draw data or augment. `_advance` must be free of host decisions, so that the same
    code runs eagerly and inside a CUDA graph, and must change nothing when no particle is left.
    Where it cannot be, `recordable` is False and every step is eager.
    """

    recordable = True

    def __init__(
        self,
        particles: Ensemble,
        *,
        link: Link = "softmax",
        min_ess: float | None = None,
        check_every: int = 100,
    ) -> None:
        super().__init__(particles, link=link, min_ess=min_ess)
        self.check_every = check_every
        self._unchecked = 0
        self._failed = torch.zeros((), dtype=torch.bool, device=particles.device)

    def step(
        self, closure: Closure | Sequence[Closure], *, penalty: Closure | None = None
    ) -> StepInfo:
        """Take one step on the loss of `closure`; of several closures, on the sum of theirs."""
        closures = list(closure) if isinstance(closure, Sequence) else [closure]
        if not closures:
            raise ValueError("step needs at least one closure, got an empty list")
        for function in (*closures, *([] if penalty is None else [penalty])):
            if not callable(function):
                raise TypeError(
                    "step takes functions that compute losses, as in pf.step(lambda: "
                    f"loss(particles(x), y)), got {type(function).__name__}"
                )
        info = self._advance(closures, penalty)
        self.check()
        return info.copied()

    def compile(
        self,
        loss_fn: Callable[..., Tensor],
        penalty: Callable[..., Tensor] | None = None,
    ) -> CompiledStep:
        """`fast = pf.compile(loss_fn)`, then `info = fast(x, y)`: one CUDA graph per shape.

        `loss_fn(*batch) -> [N]` and `penalty(*batch) -> [N]` are the closures' counterparts.
        On the CPU, and with a group, whose ranks must talk in the middle of a step, this is
        `step`. Randomness inside `loss_fn` must come from the ensemble
        (dropout): torch's own generator would give a graph's two evaluations different numbers.
        """
        return CompiledStep(self, loss_fn, penalty)

    @abstractmethod
    def _advance(self, closures: Sequence[Closure], penalty: Closure | None) -> StepInfo:
        """One step: move the particles, weigh them with `_reweigh`, say what happened."""

    # ------------------------------------------------------------------ losses

    def _losses(self, closure: Closure, what: str = "closure") -> Tensor:
        losses = closure()
        n, device = self.particles.shard.count, self.particles.device
        if not isinstance(losses, Tensor):
            raise TypeError(f"the {what} must return a tensor, got {type(losses).__name__}")
        if losses.shape != (n,):
            got = "a scalar" if losses.dim() == 0 else f"shape {tuple(losses.shape)}"
            raise ValueError(
                f"the {what} must return one loss per particle, shape ({n},), got {got}: "
                "ol.per_particle turns a loss for one network into such a function"
            )
        if losses.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"the {what} must return float32 or float64, got {losses.dtype}")
        if losses.device != device:
            raise ValueError(f"the {what} returned losses on {losses.device}, not on {device}")
        return losses

    def _losses_again(self, closures: Sequence[Closure], draw: Tensor, rng: Any) -> list[Tensor]:
        """The losses where particles now stand: same noise as before, no buffer changed.

        One row `[N]` for each closure, of the particles on all ranks.
        """
        gather = self.particles.shard.gather
        same_noise = _same_noise(rng, self.particles.device)
        with torch.no_grad(), self._precision(), self.particles.replay(draw), same_noise:
            return [gather(self._losses(closure)) for closure in closures]

    def _precision(self) -> Any:
        return matrix_precision(self.particles.precision, self.particles.device)

    def _noise(self) -> Any:
        """torch's generators as they are now, for `_losses_again`."""
        device = self.particles.device
        if device.type != "cuda":
            return torch.get_rng_state(), None
        if torch.cuda.is_current_stream_capturing():
            return None
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)

    @contextmanager
    def _nothing_half_done(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Buffers and the noise counter as they are now; and again if what follows fails."""
        buffers = self.particles.particle_buffers()
        held = {name: buffer.clone() for name, buffer in buffers.items()}
        draw = self.particles._draws.clone()
        try:
            yield held, draw
        except BaseException:
            with torch.no_grad():
                for name, buffer in buffers.items():
                    buffer.copy_(held[name])
                self.particles._draws.copy_(draw)
            raise

    # ------------------------------------------------------------------ weights

    def _reweigh(self, log_likelihood: Tensor, alive: Tensor) -> Tensor:
        """w_i <- w_i e^{log_likelihood_i}; the dead get 0. Returns who is left `[N]`.

        When nobody is left, weights and evidence stay as they are and `check` will say so.
        """
        if fused.can_reweigh(log_likelihood):
            state = self.raw_log_weights, self._log_evidence, self.alive, self._failed, self.steps
            return fused.reweigh(log_likelihood, alive, *state)
        alive = alive & is_finite(log_likelihood)
        grown = (self.raw_log_weights + log_likelihood).masked_fill(~alive, -torch.inf)
        log_weights, total = normalize(grown)
        someone = is_finite(total)
        torch.where(someone, log_weights, self.raw_log_weights, out=self.raw_log_weights)
        self._log_evidence.add_(total.nan_to_num(nan=0.0, neginf=0.0))
        torch.where(someone, alive, self.alive, out=self.alive)
        self._failed.logical_or_(~someone)
        self.steps.add_(someone)
        return alive

    def _refuse_if_none(self, alive: Tensor) -> None:
        """On the host, where looking is free, fail at once."""
        if alive.device.type == "cpu" and not alive.any():
            self._failed.fill_(True)
            self.check(now=True)

    def check(self, now: bool = False) -> None:
        """Raise if no particle is left. On CUDA the host asks only every `check_every` steps."""
        self._unchecked += 1
        waits = self.particles.device.type == "cuda" and self._unchecked < self.check_every
        if waits and not now:
            return
        self._unchecked = 0
        if self._failed.item():
            self._failed.zero_()
            raise FloatingPointError(
                "no particle is left with a finite loss and gradient; all stand where they stood "
                "before the step: lower the learning rate or look at the data"
            )


def sum_of(losses: list[Tensor]) -> Tensor:
    """The sum of one or several `[N]`."""
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum(0)


@contextmanager
def _same_noise(rng: Any, device: torch.device) -> Iterator[None]:
    """torch's generators put to `rng`, and back to where they were afterwards."""
    if rng is None:
        yield
        return
    cpu, cuda = rng
    now_cpu = torch.get_rng_state()
    now_cuda = None if cuda is None else torch.cuda.get_rng_state(device)
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)
    try:
        yield
    finally:
        torch.set_rng_state(now_cpu)
        if now_cuda is not None:
            torch.cuda.set_rng_state(now_cuda, device)
