"""The fast path: a whole filter step as one CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..filters.base import ParticleFilter, StepInfo


class CompiledStep:
    """Called like `loss_fn`, it takes a step like `ParticleFilter.step`; for CUDA.

    The first batch of a shape runs eagerly, which also creates optimizer state and library handles.
    The second is recorded, and later ones are replayed from static buffers. A step is recorded
    again when what it depends on besides tensors changes (`recorded_settings`: the weighting, the
    penalties and their numbers of tasks, ...).
    """

    def __init__(
        self,
        owner: ParticleFilter,
        loss_fn: Callable[..., Any],
        penalty: Callable[..., Tensor] | None,
    ) -> None:
        self.filter = owner
        self.loss_fn = loss_fn
        self.penalty = penalty
        self._forget()
        # Eager steps run on the stream that records: autograd remembers the stream on which
        # gradients accumulate, and a recording must not be led to another one.
        self._stream = torch.cuda.Stream(owner.particles.device)

    def _forget(self) -> None:
        """Drop all recordings: a loaded optimizer state has other memory."""
        self._loads = self.filter.loads
        self._graphs: dict[Any, _Graph | None] = {}
        optimizer = getattr(self.filter, "optimizer", None)
        self._rates = Rates(optimizer, self.filter.particles.device)

    def __call__(self, *batch: Tensor) -> StepInfo:
        if self._loads != self.filter.loads:
            self._forget()
        self.filter.particles.check_devices(*batch)
        rates = self._rates.update()
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in batch)
        key = self.filter.particles.training, rates, self.filter.recorded_settings(), shapes
        if key not in self._graphs:
            self._graphs[key] = None
            # Copies, as in a recording: kernels are chosen by strides and alignment, and one that
            # has not run before cannot be loaded during a recording.
            return self._eager(_copies(batch))
        if not self._rates.can_be_recorded:
            return self._eager(batch)
        graph = self._graphs[key]
        if graph is None:
            pool = next((g.graph.pool() for g in self._graphs.values() if g is not None), None)
            with self._rates.set_up():
                graph = self._graphs[key] = _Graph(self, batch, pool)
        info = graph.replay(batch)
        self.filter.check()
        return info

    def closures(self, batch: tuple[Tensor, ...]) -> tuple[Any, Any]:
        penalty = None if self.penalty is None else partial(self.penalty, *batch)
        return partial(self.loss_fn, *batch), penalty

    def _eager(self, batch: tuple[Tensor, ...]) -> StepInfo:
        closure, penalty = self.closures(batch)
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), self._rates.set_up():
            info = self.filter.step(closure, penalty=penalty)
        current.wait_stream(self._stream)
        return info


def _copies(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies of tensors; a loss may be differentiated by them as by the originals."""
    return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in batch)


class _Graph:
    """One recorded step with the buffers it reads and writes."""

    def __init__(self, step: CompiledStep, batch: tuple[Tensor, ...], pool: Any) -> None:
        self.inputs = _copies(batch)
        closure, penalty = step.closures(self.inputs)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with no_garbage(), torch.cuda.graph(self.graph, pool=pool, stream=step._stream):
            self.info = step.filter.advance([closure], penalty)

    @torch.no_grad()
    def replay(self, batch: tuple[Tensor, ...]) -> StepInfo:
        for static, tensor in zip(self.inputs, batch, strict=True):
            static.copy_(tensor)
        self.graph.replay()
        # The graph writes to the same memory every time; results must not change later.
        return self.info.copied()


class Rates:
    """Learning rates as tensors on the device, so that schedulers change them inside a graph.

    `with rates.set_up():` the optimizer uses them and takes steps that a graph can record; outside
    it is as its owner made it. Other optimizers, such as RMSprop, read the number on the host: it
    is then part of the graph, which is recorded again when the number changes. Those that cannot
    count their steps on the device, such as Adagrad, are not recorded.
    """

    READS_TENSORS = (torch.optim.SGD, torch.optim.Adam)  # AdamW is an Adam

    def __init__(self, optimizer: torch.optim.Optimizer | None, device: torch.device) -> None:
        base: Any = getattr(optimizer, "base", optimizer)  # of an optimizer around another
        defaults = {} if base is None else base.defaults
        self.groups = [] if base is None else base.param_groups
        self.fused = isinstance(base, self.READS_TENSORS)
        self.capturable = "capturable" in defaults
        self.can_be_recorded = base is None or self.fused or self.capturable
        self.static = [torch.zeros((), dtype=torch.float32, device=device) for _ in self.groups]
        for state in base.state.values() if self.capturable else ():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.to(device)  # step counts, which a graph must update

    def update(self) -> tuple[float, ...]:
        """Read the present rates. Returns those that are part of a graph: none if tensors."""
        if not self.fused:
            return tuple(float(group["lr"]) for group in self.groups)
        for group, rate in zip(self.groups, self.static, strict=True):
            lr = group["lr"]
            rate.copy_(lr) if isinstance(lr, Tensor) else rate.fill_(lr)
        return ()

    @contextmanager
    def set_up(self) -> Iterator[None]:
        before = [dict(group) for group in self.groups]
        for group, rate in zip(self.groups, self.static, strict=True):
            if self.capturable:
                group["capturable"] = True
            if self.fused:
                # one kernel instead of fifteen for each tensor: torch's `foreach` skips subclasses
                # of nn.Parameter, and only the fused kernel of SGD takes a tensor
                group.update(lr=rate, fused=True, foreach=False)
        try:
            yield
        finally:
            for group, options in zip(self.groups, before, strict=True):
                group.update(options)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Disable garbage collection while a CUDA graph is recorded.

    Freeing the memory of an old graph would make the recording fail.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
