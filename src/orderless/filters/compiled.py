"""The fast path: a whole filter step as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..particles.device import no_garbage

if TYPE_CHECKING:
    from .step import StepInfo, SteppedFilter


class CompiledStep:
    """Calls like `loss_fn`, steps like `SteppedFilter.step`; for CUDA.

    A shape that was not seen before runs eagerly, which also creates optimizer state and library
    handles; the second time it is recorded, and from then on replayed from static buffers. A filter
    whose settings (`recorded_by`) have changed is recorded anew, too; one whose settings change at
    every step stays eager. So is every call where a step is not `recordable`, and with a group:
    ranks wait for each other in the middle of a step, and the host must know which particles change
    places. Learning rates are tensors, so schedulers reach into the graph.
    """

    def __init__(
        self,
        owner: SteppedFilter,
        loss_fn: Callable[..., Any],
        penalty: Callable[..., Tensor] | None,
    ) -> None:
        self.filter, self.loss_fn, self.penalty = owner, loss_fn, penalty
        self._forget()
        # Steps that are not replayed run on the stream that records: what autograd remembers of
        # them (where gradients accumulate) must not lead a recording to another stream.
        self._stream = torch.cuda.Stream(owner.particles.device)

    def _forget(self) -> None:
        """Drop all recordings: a loaded optimizer state, say, lies in other memory."""
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
            # As copies, like those of a recording: kernels are chosen by strides and alignment, and
            # one that has not run before cannot be loaded while a recording is under way.
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
    """What Python decides a step by: the filter's `recorded_by`, and who is in its lists."""
    values = (getattr(owner, name) for name in owner.recorded_by)
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _copies(batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """In memory of their own; a loss may ask for the gradient by them as by the batch itself."""
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
        # The graph writes the same memory every time; what is handed out must stay as it is.
        return self.info.copied()


class _Rates:
    """Learning rates as tensors, for optimizers that read them on the device.

    The others (RMSprop, say) ask the host for the number, so it is part of the graph: a graph is
    recorded anew when they change it.
    """

    READS_TENSORS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)

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
                if isinstance(base, (torch.optim.Adam, torch.optim.AdamW)):
                    # one kernel instead of fifteen for each tensor: torch's `foreach` leaves
                    # parameters alone that are more than nn.Parameter
                    group["fused"], group["foreach"] = True, False
            elif isinstance(base, torch.optim.SGD):  # only its fused kernel takes a tensor
                group["fused"], group["foreach"] = True, False
        for state in self.state.values() if "capturable" in base.defaults else ():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value.to(device)

    def count_on_the_host(self) -> bool:
        """Whether the optimizer (Adagrad, say) keeps numbers that a recording would not move on."""
        kept = [value for state in self.state.values() for value in state.values()]
        return any(
            value.device.type == "cpu" if isinstance(value, Tensor) else isinstance(value, int)
            for value in kept
        )

    def key(self) -> tuple[float, ...]:
        """What a graph depends on: nothing where rates are tensors."""
        if not self.static:
            return tuple(float(group["lr"]) for group in self.groups)
        # A scheduler writes into the tensor; someone may also have put a number in its place.
        for group, rate in zip(self.groups, self.static, strict=True):
            if group["lr"] is not rate:
                rate.fill_(float(group["lr"]))
                group["lr"] = rate
        return ()
