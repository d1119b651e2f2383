"""One step of a filter as a transaction: it is taken in full or undone.

Algorithm 1 of the paper (arXiv:2410.22695) reads

    with self.transaction(closures, penalty) as step:
        step.move()                          # x <- x - sigma^2 grad L(x)
        step.commit(self.weighting(step))    # log w <- log w - (L(x_t) + L(x_{t+1})) / 2
    return step.info

`Step` does everything around these lines: it checks what closures return, replays the noise in the
second evaluation, restores particles that died, gathers over ranks, and undoes the step after an
error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from ..cuda import fused
from ..ensemble import Ensemble
from ..ensemble.linear import Write
from ..ensemble.parameter import per_particle_view
from ..ensemble.precision import matrix_precision
from .base import ParticleFilter
from .compiled import CompiledStep
from .weights import effective_sample_size, is_finite, normalize

Closure = Callable[..., Any]


@dataclass(frozen=True)
class StepInfo:
    """The report of one step; tensors stay on the device.

    `loss_before` `[N]` at the old positions, `loss_after` `[N]` at the new ones (None if the filter
    does not evaluate them), `penalty` `[N]` or None, `alive` `[N]`, and the raw `log_weights` `[N]`
    after the step with their `ess`.
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
        """A copy with its own tensors: a step returns its working memory."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{k: v.clone() for k, v in tensors.items() if v is not None})


class Step:
    """A step in progress.

    On entry it saves the filter's weights, the networks' buffers and the states of all random
    generators; `hold` saves other tensors that are about to change. `commit` weighs the particles
    and restores those that died. An error before that restores everything. An interrupt after that
    does not keep the step from being completed.

    Losses, weights and `alive` `[N]` are of all particles; parameters, buffers and what `evaluate`
    returns are of the particles on this rank.
    """

    def __init__(self, owner: SteppedFilter, closures: Sequence[Closure]) -> None:
        self.filter, self.particles, self.shard = owner, owner.particles, owner.particles.shard
        self.closures = closures
        self.alive = owner.alive  # particles that may survive the step
        self.loss_before: Tensor
        self.loss_after: Tensor | None = None
        self.penalty: Tensor | None = None
        self.info: StepInfo
        self.held: list[tuple[Tensor, Tensor]] = []  # (tensor, its value before the step)
        self.writes: list[Write] | None = None  # None: nothing is decided yet

    def __enter__(self) -> Self:
        self.contexts = ExitStack()
        device = self.particles.device
        self.draw = self.particles.noise_counter.clone()
        self.generators = _generators(device)
        owner = self.filter
        weighed = owner.raw_log_weights, owner._log_evidence, owner.alive, owner.steps
        # a recording has no errors to undo
        self.weighed = [(tensor, tensor.clone()) for tensor in weighed if self.generators]
        self.hold(*self.particles.particle_buffers().values())
        self.contexts.enter_context(matrix_precision(self.particles.precision, device))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self.contexts:
            if kind is not None and self.writes is None:
                self.undo()
            elif kind is not None:
                self.complete()

    def evaluate(self, closure: Closure, what: str = "closure", **given: Any) -> tuple[Tensor, Any]:
        """Call a closure: losses of this rank's particles, and the outputs returned with them."""
        result = closure(**given)
        losses, outputs = result if isinstance(result, tuple) else (result, None)
        check_losses(losses, self.particles, what)
        return losses, outputs

    def differentiable(self, closure: Closure) -> tuple[Tensor, Any]:
        """As `evaluate`, but the losses must have a gradient."""
        losses, outputs = self.evaluate(closure)
        if not losses.requires_grad:
            raise ValueError(
                "the losses do not depend on the particles' parameters: compute them from "
                "particles(x), outside of torch.no_grad()"
            )
        return losses, outputs

    @contextmanager
    def again(self) -> Iterator[None]:
        """Evaluations inside draw the step's noise again and change no buffers."""
        replay, noise = self.particles.replay(self.draw), _same_noise(self.generators)
        with torch.no_grad(), replay, noise:
            yield

    def gather(self, losses: Sequence[Tensor]) -> Tensor:
        """The sum of one or several losses, of the particles on all ranks: `[N]`."""
        return self.shard.gather(added(losses))

    @torch.no_grad()
    def hold(self, *tensors: Tensor) -> None:
        """Save tensors: `[N, ...]` of this rank's particles, or shared by all particles."""
        known = {id(tensor) for tensor, _ in self.held}
        self.held += [(t, t.detach().clone()) for t in tensors if id(t) not in known]

    @torch.no_grad()
    def commit(self, gain: Tensor) -> None:
        """log w <- log w + gain `[N]`. A particle without a finite gain dies where it was."""
        owner = self.filter
        survivors = owner.reweigh(gain, self.alive)
        owner.fail_if_none(survivors)
        self.settle(survivors & owner.alive)
        seen = self.loss_before, self.loss_after, self.penalty
        self.info = StepInfo(*seen, owner.alive, owner.raw_log_weights)

    def settle(self, alive: Tensor) -> None:
        """End the step: restore the particles that are not `alive` `[N]`."""
        everyone = alive.device.type == "cpu" and bool(alive.all())
        own = self.shard.local(alive)
        for tensor, before in () if everyone else self.held:
            if tensor.device == alive.device:  # Adam may count its steps on the CPU
                of_particles = tensor.shape[:1] == own.shape
                keep = per_particle_view(own, tensor) if of_particles else alive.any()
                tensor.copy_(torch.where(keep, tensor, before))
        self.writes = self.pending(own)  # the step is undone until here, and completed from here on
        self.complete()

    def pending(self, alive: Tensor) -> list[Write]:
        """The changes of this rank's `alive` particles that had to wait, each made only once."""
        return []

    @torch.no_grad()
    def complete(self) -> None:
        """Make the pending changes, or those that an interrupt has left."""
        for write in self.writes or ():
            write()
        self.writes = []

    @torch.no_grad()
    def undo(self) -> None:
        """Restore everything after an error."""
        for tensor, before in self.held + self.weighed:
            tensor.copy_(before)
        self.particles.noise_counter.copy_(self.draw)
        for generator, state in self.generators:
            generator.set_state(state)


class SteppedFilter(ParticleFilter, ABC):
    """A filter that learns from closures. Subclasses define one step in `advance`.

    A closure computes N losses (`[N]`, float32 or float64) and nothing else: it does not call
    backward, draw data or augment. It may return `(losses, outputs)`; a penalty is then called with
    `outputs=` and need not compute them again. `advance` must not make decisions on the host, so
    that the same code runs eagerly and inside a CUDA graph. If it has to, `recordable` is False and
    every step is eager. `recorded_by` names the attributes besides tensors that a recorded step
    depends on: when one of them changes, the step is recorded again.
    """

    recordable = True
    recorded_by: tuple[str, ...] = ()

    def __init__(self, particles: Ensemble, *, check_every: int = 100, **options: Any) -> None:
        super().__init__(particles, **options)
        self.check_every, self._unchecked = check_every, 0
        self._failed = torch.zeros((), dtype=torch.bool, device=particles.device)

    def step(
        self,
        closure: Closure | Sequence[Closure],
        *,
        penalty: Closure | None = None,
        **options: Any,
    ) -> StepInfo:
        """Take one step on the loss of `closure`, or on the sum of the losses of several."""
        closures = list(closure) if isinstance(closure, Sequence) else [closure]
        if not closures:
            raise ValueError("step needs at least one closure, got an empty list")
        for function in (*closures, *([] if penalty is None else [penalty])):
            if not callable(function):
                raise TypeError(
                    "step takes functions that compute losses, as in pf.step(lambda: "
                    f"loss(particles(x), y)), got {type(function).__name__}"
                )
        info = self.advance(closures, penalty, **options)
        self.check()
        return info.copied()

    @abstractmethod
    def advance(self, closures: Sequence[Closure], penalty: Closure | None = None) -> StepInfo:
        """One step: a `transaction` that moves the particles, weighs and commits them."""

    def transaction(self, closures: Sequence[Closure]) -> Step:
        """`with self.transaction(closures) as step:` is a step that is undone after an error."""
        return Step(self, closures)

    def compile(
        self, loss_fn: Callable[..., Any], penalty: Callable[..., Tensor] | None = None
    ) -> Callable[..., StepInfo]:
        """`fast = pf.compile(loss_fn)`, then `info = fast(x, y)`: one CUDA graph per shape.

        `loss_fn(*batch) -> [N]` and `penalty(*batch) -> [N]` replace the closures. On the CPU, and
        with a group, whose ranks communicate within a step, this is `step`. Random numbers in
        `loss_fn` must come from the ensemble (dropout): torch's own generator would give the two
        evaluations of a graph different numbers.
        """
        if self.particles.device.type == "cuda":
            return CompiledStep(self, loss_fn, penalty)

        def step(*batch: Tensor) -> StepInfo:
            held = None if penalty is None else partial(penalty, *batch)
            return self.step(partial(loss_fn, *batch), penalty=held)

        return step

    def reweigh(self, log_likelihood: Tensor, alive: Tensor) -> Tensor:
        """w_i <- w_i e^{log_likelihood_i}, 0 for the dead. Returns which particles are left `[N]`.

        If none is left, weights and evidence stay as they are and the next `check` raises.
        """
        if log_likelihood.is_cuda and fused.can_reweigh(self.raw_log_weights):
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

    def fail_if_none(self, alive: Tensor) -> None:
        """Raise at once if no particle is left; on the CPU only, where reading a mask is free."""
        if alive.device.type == "cpu" and not alive.any():
            self._failed.fill_(True)
            self.check(now=True)

    def check(self, now: bool = False) -> None:
        """Raise if no particle is left. On CUDA this is checked only every `check_every` steps."""
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


def check_losses(losses: Any, particles: Ensemble, what: str) -> None:
    """Raise if a function did not return one loss per particle."""
    n, device = particles.shard.count, particles.device
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


def added(parts: Sequence[Tensor]) -> Tensor:
    """The sum of one or several tensors of one shape."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


Generators = list[tuple[torch.Generator, Tensor]]


def _generators(device: torch.device) -> Generators:
    """torch's generators and their states; none while a step is recorded."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return []
    used = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        used.append(torch.cuda.default_generators[index])
    return [(generator, generator.get_state()) for generator in used]


@contextmanager
def _same_noise(generators: Generators) -> Iterator[None]:
    """Put torch's generators into these states, and afterwards back into their present ones."""
    now = [(generator, generator.get_state()) for generator, _ in generators]
    for generator, state in generators:
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in now:
            generator.set_state(state)
