"""`Ensemble`: N networks as one `nn.Module`."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C._functorch import (
    _add_batch_dim,
    _remove_batch_dim,
    _vmap_decrement_nesting,
    _vmap_increment_nesting,
)
from torch._functorch.vmap import lazy_load_decompositions
from torch.utils._pytree import tree_map_only

from . import random
from .calls import Noise, at_axes, explain, particle_axes, refuse_noise, run_chunks
from .device import PRECISIONS, find_device, generators_of, matrix_precision
from .initialization import Perturb, chosen_indices, initial_modules, whole_seed
from .rules import ParticleRules
from .stacking import (
    all_equal,
    check_names,
    check_same_network,
    check_stackable,
    particle_of,
    stacked,
    tensors_of,
)


class Ensemble(nn.Module):
    """N networks as one module: parameters and buffers `[N, ...]` under the network's names.

    Args:
        make_model: a function that makes one network, or a network whose layers are initialised
            anew for every particle.
        n: the number of particles.
        init: `"fresh"` (each from the module's own initialiser) or an `ol.Perturb`.
        seed: particle i depends on (seed, i) alone, whatever n, chunk size or device.
        indices: hold these particles of the n only, e.g. `range(50, 100)`; see `ol.merge_filters`.
            `particles.n` is then their number.
        chunk_size: at most this many particles are computed at a time; the backward pass
            recomputes a chunk's activations instead of storing them.
        precision: `"float32"`, `"tf32"` or `"bf16"`; the precision is never reduced silently.

    A network may be any module that `torch.vmap` can run: no branch on a tensor's value, no
    `.item()`, no writing into a tensor that it made. Recurrent layers and tied weights work.

    `forward` shares its inputs between particles by default and returns the network's outputs with
    a leading N on every tensor. Dropout is keyed on (seed, draw, i); other random functions inside
    a network differ between particles but are not keyed. The layers are the network's own, with
    stacked tensors: hooks on them run once a pass and see one particle's shapes, and `eval()` or
    `requires_grad_()` on a layer holds for all particles. Several threads take turns.

    >>> import torch, orderless as ol
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(3, 2), n=5, seed=0)
    >>> particles(torch.ones(4, 3)).shape
    torch.Size([5, 4, 2])
    >>> particles[0]
    Linear(in_features=3, out_features=2, bias=True)
    """

    n: int
    seed: int

    def __init__(
        self,
        make_model: Callable[[], nn.Module] | nn.Module,
        n: int,
        init: str | Perturb = "fresh",
        seed: int = 0,
        *,
        indices: Sequence[int] | None = None,
        chunk_size: int | None = None,
        precision: str = "float32",
        device: torch.device | str | None = None,
    ) -> None:
        # a feature map says whether it is `exact`: its weights are random, or shared and kept
        if isinstance(make_model, nn.Module) and not hasattr(make_model, "exact"):
            warnings.warn(
                f"every particle gets new weights, those of this {type(make_model).__name__} are "
                "not used: to start from them pass lambda: network and init=ol.Perturb()",
                stacklevel=2,
            )
        chosen = chosen_indices(n, indices)
        modules = list(initial_modules(make_model, chosen, init, whole_seed(seed)))
        self._build(modules, chosen, seed, chunk_size, precision)
        default = torch.get_default_device()
        self.to(default if device is None and default.type != "cpu" else device)

    @classmethod
    def from_modules(
        cls,
        modules: Sequence[nn.Module],
        *,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        chunk_size: int | None = None,
        precision: str = "float32",
        device: torch.device | str | None = None,
    ) -> Self:
        """Stack existing networks of one architecture; arguments as in the constructor."""
        if not modules:
            raise ValueError("from_modules needs at least one module, got none")
        chosen = list(range(len(modules)) if indices is None else indices)
        ensemble = cls.__new__(cls)
        ensemble._build(list(modules), chosen, seed, chunk_size, precision)
        return ensemble.to(device)

    @torch.inference_mode(False)  # inference tensors could never be loaded or trained
    def _build(
        self,
        modules: list[nn.Module],
        indices: list[int],
        seed: int,
        chunk_size: int | None,
        precision: str,
    ) -> None:
        super().__init__()
        check_stackable(modules, in_chunks=chunk_size is not None)
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        self.n = len(modules)
        self.seed = whole_seed(seed)
        self.chunk_size = chunk_size
        self.precision = precision
        network = stacked(modules)
        self.training = network.training
        device = next((t.device for t in tensors_of(network).values()), torch.device("cpu"))
        self._draws = torch.zeros((), dtype=torch.int64, device=device)
        self._indices = torch.tensor(indices, dtype=torch.int64, device=device)
        self._replayed: Tensor | None = None  # the noise counter of a replay
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._take_layers(network)
        if all_equal(modules):
            warnings.warn(
                f"all {len(modules)} particles are equal, and will stay so without noise: make "
                "networks with other weights, or use init=ol.Perturb()",
                stacklevel=3,
            )

    def _take_layers(self, network: nn.Module) -> None:
        """Make the network's layers this module's own, under the same names."""
        check_names(network, self)
        # A tuple hides it from nn.Module: its parts are registered here, not below it.
        self._hidden = (network,)
        self._parameters = network._parameters
        self._buffers = network._buffers
        self._modules = network._modules
        self._non_persistent_buffers_set = network._non_persistent_buffers_set
        self._layers = list(network.modules())
        # Where each tensor is: (a layer's table, name); a tied tensor is in several places.
        places: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for tensor in tensors_of(self).values():
            places[id(tensor)] = []
        for layer in self._layers:
            for table in (layer._parameters, layer._buffers):
                for name, value in table.items():
                    if value is not None:
                        places[id(value)].append((table, name))
        self._places = list(places.values())  # parameters, then buffers
        self._first_buffer = sum(1 for _ in self.parameters())

    @property
    def template(self) -> nn.Module:
        """The network whose layers these are; its tensors are stacked, so it cannot be called."""
        return self._hidden[0]

    @property
    def device(self) -> torch.device:
        return self._draws.device

    @property
    def indices(self) -> Tensor:
        """The index of each particle `[N]`, on which its initial values and noise are keyed."""
        return self._indices

    @property
    def noise_counter(self) -> Tensor:
        """The number of forward passes that have drawn noise, a scalar; see `replay`."""
        return self._draws

    @property
    def runs_batched(self) -> bool:
        """Whether a forward pass computes all particles at once by the batched rules."""
        return self.n > 1 and (self.chunk_size is None or self.chunk_size >= self.n)

    def to(self, *args: Any, **options: Any) -> Self:
        """`nn.Module.to`, with a clear error for a device that does not exist."""
        device = options.get("device", args[0] if args else None)
        if isinstance(device, str | torch.device):
            find_device(device)
        return super().to(*args, **options)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        layers: list[nn.Module] = [self, *self._layers[1:]]
        for layer in layers:
            nn.Module._apply(layer, fn, recurse=False)  # not a layer's own: it has one network's
        device = fn(torch.empty(0, device=self.device)).device
        self._draws = self._draws.to(device)
        self._indices = self._indices.to(device)
        return self

    def train(self, mode: bool = True) -> Self:
        self.template.training = mode
        return super().train(mode)

    def particle_buffers(self) -> dict[str, Tensor]:
        """The networks' buffers `[N, ...]`, by their names."""
        return dict(self.named_buffers())

    def tensors(self) -> dict[str, Tensor]:
        """All parameters and buffers `[N, ...]`, by the network's names."""
        return tensors_of(self)

    def forward(
        self, *args: Any, in_dims: Any = None, per_particle: bool = False, **kwargs: Any
    ) -> Any:
        """Run all networks. Inputs are shared; `per_particle=True` takes `[N, B, ...]` inputs.

        `in_dims` gives an axis (or None) for each positional argument, as in `torch.vmap`.
        """
        self.check_devices(*args)
        inputs = args, kwargs
        axes = None
        if per_particle or in_dims is not None:
            axes = particle_axes(self.n, args, kwargs, in_dims, per_particle)
        in_chunks = self.chunk_size is not None and self.chunk_size < self.n
        with self._lock:
            tensors = self._stacked_tensors()
            counter = self._draws if self._replayed is None else self._replayed
            draw = counter.clone() if in_chunks else counter  # a chunk may run again, later
            noise: Noise = partial(random.particle_keys, self.seed, draw)
            if torch._C._current_graph_task_id() != -1:  # inside of a backward pass
                noise = refuse_noise
            run = partial(run_chunks, self) if in_chunks else self._run_some
            evaluating = getattr(self._thread, "evaluating", 0) > 0
            outputs, buffers, drawn = run(noise, evaluating, tensors, self._indices, inputs, axes)
            if buffers and self._replayed is None:
                with torch.no_grad():
                    for buffer, value in zip(tensors[self._first_buffer :], buffers, strict=True):
                        buffer.copy_(value)
            if drawn:
                counter.add_(1)
        return outputs

    def check_devices(self, *inputs: Any) -> None:
        """Raise if a tensor is not on the particles' device."""
        device = self.device
        for tensor in inputs:
            if isinstance(tensor, Tensor) and tensor.device != device and tensor.dim() > 0:
                raise ValueError(
                    f"an input is on {tensor.device} but the particles are on {device}: "
                    "move one to the other with .to()"
                )

    def _stacked_tensors(self) -> list[Tensor]:
        """The networks' tensors `[N, ...]`: parameters, then buffers."""
        tensors = []
        for places in self._places:
            table, name = places[0]
            tensor = table.get(name)
            if tensor is None:
                raise RuntimeError(
                    f"the ensemble has lost its tensor {name!r}: prune or reparametrise the "
                    "networks before they become an ensemble"
                )
            tensors.append(tensor)
        return tensors

    def _run_some(
        self,
        noise: Noise,
        evaluating: bool,
        tensors: list[Tensor],
        indices: Tensor,
        inputs: Any,
        axes: Any,
    ) -> tuple[Any, list[Tensor], int]:
        """Run some particles: outputs `[N, ...]`, buffers after it, number of random draws."""
        if self._first_buffer < len(tensors):  # a pass may be repeated
            buffers = [buffer.clone() for buffer in tensors[self._first_buffer :]]
            tensors = [*tensors[: self._first_buffer], *buffers]
        # One network equals that network bit for bit. On a GPU in reduced precision the batched
        # kernels are faster even for one.
        reduced = self.device.type == "cuda" and self.precision != "float32"
        with matrix_precision(self.precision, self.device), self._lock:  # also in a backward pass
            if self.n == 1 and not reduced:
                tensors = [tensor[0] for tensor in tensors]
                if axes is not None:
                    inputs = at_axes(lambda tensor, axis: tensor.select(axis, 0), inputs, axes)
                answer = self._fill_and_call(noise, evaluating, tensors, indices[0], inputs)
                return _outside(lambda tensor: tensor.unsqueeze(0), *answer)
            n = len(indices)
            lazy_load_decompositions()
            level = _vmap_increment_nesting(n, "different")
            try:
                tensors = [_add_batch_dim(tensor, 0, level) for tensor in tensors]
                index = _add_batch_dim(indices, 0, level)
                if axes is not None:
                    inputs = at_axes(lambda t, i: _add_batch_dim(t, i, level), inputs, axes)
                answer = self._fill_and_call(noise, evaluating, tensors, index, inputs)
                return _outside(lambda t: _remove_batch_dim(t, level, n, 0), *answer)
            except RuntimeError as error:
                explain(error, self.template)
                raise
            finally:
                _vmap_decrement_nesting()

    def _fill_and_call(
        self, noise: Noise, evaluating: bool, tensors: list[Tensor], index: Tensor, inputs: Any
    ) -> tuple[Any, list[Tensor], int]:
        """Call the network with these tensors in its places: as `_run_some`, for one particle."""
        before = self._stacked_tensors()
        modes = [layer.training for layer in self._layers] if evaluating else []
        args, kwargs = inputs
        try:
            self._fill(tensors)
            for layer in self._layers if evaluating else ():
                layer.training = False
            with ParticleRules(partial(noise, index)) as rules:
                output = self.template(*args, **kwargs)
            # a network may write into its buffers or replace them
            buffers = [table[name] for (table, name), *_ in self._places[self._first_buffer :]]
        finally:
            self._fill(before)
            for layer, mode in zip(self._layers, modes, strict=False):
                layer.training = mode
        return output, buffers, rules.drawn

    def _fill(self, tensors: list[Tensor]) -> None:
        for places, tensor in zip(self._places, tensors, strict=True):
            for table, name in places:
                table[name] = tensor

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Forward passes of this thread run in evaluation mode."""
        self._thread.evaluating = getattr(self._thread, "evaluating", 0) + 1
        try:
            yield
        finally:
            self._thread.evaluating -= 1

    @contextmanager
    def replay(self, counter: Tensor | None = None) -> Iterator[None]:
        """Forward passes draw the noise from this count on; buffers and counter do not change.

        `counter` is a value of `noise_counter`; None: the noise of the next pass.
        """
        before = self._replayed
        now = self._draws if before is None else before
        self._replayed = (now if counter is None else counter).clone()
        try:
            yield
        finally:
            self._replayed = before

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> nn.Module:
        """Particle `index` as an ordinary module, detached from the ensemble."""
        with self._lock:
            return particle_of(self.template, self._check_index(index))

    @torch.no_grad()
    def load_particle(self, index: int, module: nn.Module) -> None:
        """Write an ordinary module's parameters and buffers into particle `index`."""
        index = self._check_index(index)
        check_same_network(self[index], module, "the module is of another architecture")
        stacked_tensors = self.tensors()
        for name, tensor in tensors_of(module).items():
            stacked_tensors[name][index].copy_(tensor)

    def _check_index(self, index: int) -> int:
        index = operator.index(index)
        if not -self.n <= index < self.n:
            raise IndexError(f"particle {index} does not exist: there are {self.n}")
        return index % self.n

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_lock", "_thread")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lock = threading.RLock()
        self._thread = threading.local()

    def extra_repr(self) -> str:
        network = type(self.template).__name__
        return f"n={self.n}, network={network}, seed={self.seed}, precision={self.precision!r}"


def _outside(
    leave: Callable[[Tensor], Tensor], output: Any, buffers: list[Tensor], drawn: int
) -> tuple[Any, list[Tensor], int]:
    """What `_fill_and_call` returned, with a leading N; None, numbers and others stay."""
    one = isinstance(output, Tensor)  # the usual case; to walk a tree takes longer
    outputs = leave(output) if one else tree_map_only(Tensor, leave, output)
    return outputs, [leave(buffer) for buffer in buffers], drawn


class Draws:
    """What the next forward passes of an ensemble will draw: its own noise and torch's."""

    def __init__(self, particles: Ensemble) -> None:
        self.particles = particles
        self.counter = particles.noise_counter.clone()
        buffers = particles._stacked_tensors()[particles._first_buffer :]
        self.buffers = [(buffer, buffer.clone()) for buffer in buffers]
        self.generators = [(g, g.get_state()) for g in generators_of(particles.device)]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Forward passes inside draw the same numbers again and change no buffers."""
        now = [(g, g.get_state()) for g, _ in self.generators]
        _set_states(self.generators)
        try:
            with self.particles.replay(self.counter):
                yield
        finally:
            _set_states(now)

    @torch.no_grad()
    def rewind(self) -> None:
        """Go back to where nothing had been drawn and no buffer had changed."""
        self.particles.noise_counter.copy_(self.counter)
        for buffer, value in self.buffers:
            buffer.copy_(value)
        _set_states(self.generators)


def _set_states(generators: list[tuple[torch.Generator, Tensor]]) -> None:
    for generator, state in generators:
        generator.set_state(state)
