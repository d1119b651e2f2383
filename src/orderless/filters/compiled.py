"""The fast path: a whole filter step as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..ensemble.device import no_garbage

if TYPE_CHECKING:
    from .step import StepInfo, SteppedFilter


class CompiledStep:
    """Called like `loss_fn`, it takes a step like `SteppedFilter.step`; for CUDA.

    The first batch of a shape runs eagerly, which also creates optimizer state and library handles.
    The second is recorded, and later ones are replayed from static buffers. A step is recorded
    again when the filter's settings (`recorded_by`) change; if they change at every step, all steps
    are eager. Steps are also eager if the filter is not `recordable`, and with a group: its ranks
    communicate within a step, and the host must know which particles are exchanged. Learning rates
    are tensors, so that schedulers change them inside the graph.
    """

    def __init__(
        self,
        owner: SteppedFilter,
        loss_fn: Callable[..., Any],
        penalty: Callable[..., Tensor] | None,
    ) -> None:
        self.filter, self.loss_fn, self.penalty = owner, loss_fn, penalty
        self._forget()
        # Eager steps run on the stream that records: autograd remembers the stream on which
        # gradients accumulate, and a recording must not be led to another one.
        self._stream = torch.cuda.Stream(owner.particles.device)

    def _forget(self) -> None:
        """Drop all recordings, for example because a loaded optimizer state has other memory."""
        self._loads = self.filter.loads
        self._graphs: dict[Any, _Graph | None] = {}
        optimizer = getattr(self.filter, "optimizer", None)
        device = self.filter.particles.device
        self._rates = None if optimizer is None else _Rates(optimizer, device)

    def __call__(self, *batch: Tensor) -> StepInfo:
        alone = self.filter.particles.shard.group is None
        if not (alone and self.filter.recordable):
            return self._eager(batch)
        if self._loads != self.filter.loads:
            self._forget()
        self.filter.particles.check_devices(batch)
        rates = () if self._rates is None else self._rates.key()
        training = self.filter.particles.training
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in batch)
        key = training, rates, settings_of(self.filter), shapes
        if key not in self._graphs:
            self._graphs[key] = None
            # Copies, as in a recording: kernels are chosen by strides and alignment, and one that
            # has not run before cannot be loaded during a recording.
            return self._eager(_copies(batch))
        graph = self._graphs[key]
        if graph is None and self._rates is not None and self._rates.count_on_the_host():
            return self._eager(batch)
        if graph is None:
            pool = next((g.graph.pool() for g in self._graphs.values() if g is not None), None)
            graph = self._graphs[key] = _Graph(self, batch, pool)
        info = graph.replay(batch)
        self.filter.check()
        return info

    def _closures(self, batch: tuple[Tensor, ...]) -> tuple[Any, Any]:
        penalty = None if self.penalty is None else partial(self.penalty, *batch)
        return partial(self.loss_fn, *batch), penalty

    def _eager(self, batch: tuple[Tensor, ...]) -> StepInfo:
        closure, penalty = self._closures(batch)
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            info = self.filter.step(closure, penalty=penalty)
        current.wait_stream(self._stream)
        return info


def settings_of(owner: SteppedFilter) -> tuple[Any, ...]:
    """The values on which Python code in a step depends: `recorded_by`, with lists as tuples."""
    values = (getattr(owner, name) for name in owner.recorded_by)
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _copies(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies of tensors; a loss may be differentiated by them as by the originals."""
    return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in batch)


class _Graph:
    """One recorded step with the buffers it reads and writes."""

    def __init__(self, step: CompiledStep, batch: tuple[Tensor, ...], pool: Any) -> None:
        self.inputs = _copies(batch)
        closure, penalty = step._closures(self.inputs)
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


class _Rates:
    """Learning rates as tensors, for optimizers that read them on the device.

    Others, such as RMSprop, read the number on the host. It is then part of the graph, which is
    recorded again when the number changes.
    """

    READS_TENSORS = (torch.optim.SGD, torch.optim.Adam)  # AdamW is an Adam

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.groups, self.state = optimizer.param_groups, optimizer.state
        self.static: list[Tensor] = []
        base = getattr(optimizer, "base", optimizer)
        for group in self.groups:
            if isinstance(base, self.READS_TENSORS):
                rate = torch.as_tensor(group["lr"], dtype=torch.float32).to(device)
                group["lr"] = rate
                self.static.append(rate)
            if "capturable" in group:
                group["capturable"] = True
                if isinstance(base, torch.optim.Adam):
                    # one kernel instead of fifteen for each tensor: torch's `foreach` skips
                    # subclasses of nn.Parameter
                    group["fused"], group["foreach"] = True, False
            elif isinstance(base, torch.optim.SGD):  # only its fused kernel takes a tensor
                group["fused"], group["foreach"] = True, False
        for state in self.state.values() if "capturable" in base.defaults else ():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.to(device)

    def count_on_the_host(self) -> bool:
        """Whether the optimizer, such as Adagrad, counts steps where a graph cannot."""
        kept = [value for state in self.state.values() for value in state.values()]
        return any(
            value.device.type == "cpu" if isinstance(value, Tensor) else isinstance(value, int)
            for value in kept
        )

    def key(self) -> tuple[float, ...]:
        """The learning rates that a graph depends on: none if they are tensors."""
        if not self.static:
            return tuple(float(group["lr"]) for group in self.groups)
        # A scheduler writes into the tensor, but the tensor may also have been replaced.
        for group, rate in zip(self.groups, self.static, strict=True):
            if group["lr"] is not rate:
                rate.fill_(float(group["lr"]))
                group["lr"] = rate
        return ()
