"""`Ensemble`: N networks as one `nn.Module`."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self, SupportsIndex

import torch
from torch import Tensor, nn
from torch._C._functorch import _add_batch_dim, _remove_batch_dim
from torch._functorch.vmap import lazy_load_decompositions, vmap_increment_nesting
from torch.utils import _pytree as pytree
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from . import random
from .device import find_device
from .initialization import Perturb, initial_modules
from .precision import PRECISIONS, matrix_precision
from .rules import ParticleRules
from .stacking import check_same_network, check_stackable, particle_of, stacked, tensors_of


class Inputs(NamedTuple):
    """The leaves of the networks' (args, kwargs) and the particle axis of each; None if shared."""

    leaves: list[Any]
    axes: list[int | None]
    tree: pytree.TreeSpec

    def of_particles(self, some: Callable[[Tensor, int], Tensor]) -> Self:
        """Replace the inputs per particle by `some(tensor, axis)`; shared ones stay."""
        pairs = zip(self.leaves, self.axes, strict=True)
        leaves = [leaf if axis is None else some(leaf, axis) for leaf, axis in pairs]
        return self._replace(leaves=leaves)


class Slot(NamedTuple):
    """A place of a tensor in the networks: `table[name]`."""

    table: dict[str, Any]  # a layer's `_parameters` or `_buffers`
    name: str
    number: int  # of the tensor among all; tied tensors share it
    is_buffer: bool


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
        fast: use the batched rules for Linear, Conv2d, BatchNorm and pooling (`False`: plain
            `vmap` for everything, which gives the same results more slowly).

    A network may be any module that `torch.vmap` can run: no branch on a tensor's value, no
    `.item()`, no writing into a tensor that it made. Recurrent layers and tied weights work.

    `forward` shares its inputs between particles by default and returns the network's outputs with
    a leading N on every tensor. Dropout is keyed on (seed, draw, i); other random functions inside
    a network differ between particles but are not keyed. The layers are the network's own, with
    stacked tensors: hooks on them run once a pass and see one particle's shapes, and `eval()` or
    `requires_grad_()` on a layer holds for all particles. Passes in several threads wait for each
    other.

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
        fast: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(n, SupportsIndex) or operator.index(n) < 1:
            raise ValueError(f"n must be a whole number of at least 1, got {n!r}")
        if isinstance(make_model, nn.Module):
            warnings.warn(
                f"every particle gets new weights, those of this {type(make_model).__name__} are "
                "not used: to start from them pass lambda: network and init=ol.Perturb()",
                stacklevel=2,
            )
        seed = _whole(seed)
        chosen = _chosen(indices, operator.index(n))
        modules = list(initial_modules(make_model, chosen, init, seed))
        self._build(modules, chosen, seed, chunk_size, precision, fast)
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
        fast: bool = True,
        device: torch.device | str | None = None,
    ) -> Self:
        """Stack existing networks of one architecture; arguments as in the constructor."""
        if not modules:
            raise ValueError("from_modules needs at least one module, got none")
        chosen = list(range(len(modules)) if indices is None else indices)
        ensemble = cls.__new__(cls)
        ensemble._build(list(modules), chosen, _whole(seed), chunk_size, precision, fast)
        return ensemble.to(device)

    @torch.inference_mode(False)  # inference tensors could never be loaded or trained
    def _build(
        self,
        modules: list[nn.Module],
        indices: list[int],
        seed: int,
        chunk_size: int | None,
        precision: str,
        fast: bool,
    ) -> None:
        super().__init__()
        check_stackable(modules)
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        self.n = len(modules)
        self.seed = seed
        self.chunk_size = chunk_size
        self.precision = precision
        self.fast = fast
        network = stacked(modules)
        self.training = network.training
        device = next((t.device for t in tensors_of(network).values()), torch.device("cpu"))
        self._draws = torch.zeros((), dtype=torch.int64, device=device)
        self._indices = torch.tensor(indices, dtype=torch.int64, device=device)
        self._replayed: Tensor | None = None  # the noise counter of a replay
        self._lock = threading.RLock()
        self._thread = threading.local()
        self._take_layers(network)
        if len(modules) > 1 and all(_equal(modules[0], module) for module in modules[1:]):
            warnings.warn(
                f"all {len(modules)} particles are equal, and will stay so without noise: make "
                "networks with other weights, or use init=ol.Perturb()",
                stacklevel=3,
            )

    def _take_layers(self, network: nn.Module) -> None:
        """Make the network's layers this module's own, under the same names."""
        tables = network._parameters, network._buffers, network._modules
        for name in (name for table in tables for name in table):
            if name in vars(self) or hasattr(type(self), name):
                raise ValueError(
                    f"the network has a part named {name!r}, which an ol.Ensemble uses itself: "
                    "rename it, or wrap the network in nn.Sequential"
                )
        # A tuple hides it from nn.Module: its parts are registered here, not below it.
        self._hidden = (network,)
        self._parameters = network._parameters
        self._buffers = network._buffers
        self._modules = network._modules
        self._non_persistent_buffers_set = network._non_persistent_buffers_set
        numbers = {id(tensor): number for number, tensor in enumerate(tensors_of(self).values())}
        self._layers = list(network.modules())
        self._slots = [
            Slot(table, name, numbers[id(tensor)], table is layer._buffers)
            for layer in self._layers
            for table in (layer._parameters, layer._buffers)
            for name, tensor in table.items()
            if tensor is not None
        ]
        self._buffer_numbers = {slot.number for slot in self._slots if slot.is_buffer}

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
        whole = self.chunk_size is None or self.chunk_size >= self.n
        return self.fast and self.n > 1 and whole

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
        inputs = self._inputs(args, kwargs, in_dims, per_particle)
        tensors = self._stacked_tensors()
        counter = self._draws if self._replayed is None else self._replayed
        evaluating = getattr(self._thread, "evaluating", 0) > 0
        chunks = self._chunks(tensors, inputs)
        if len(chunks) == 1:
            (outputs, buffers), drawn = self._run(counter, evaluating, *chunks[0])
        else:
            (outputs, buffers), drawn = self._run_chunks(counter, evaluating, chunks)
        if self._replayed is None and buffers:
            with torch.no_grad():
                for number, value in buffers.items():
                    tensors[number].copy_(value)
        if drawn:
            if torch._C._current_graph_task_id() != -1:
                raise RuntimeError(
                    "this forward pass draws noise and runs again inside a backward pass "
                    "(torch.utils.checkpoint), where it would draw other noise: use "
                    "Ensemble(chunk_size=...), which recomputes with the same"
                )
            counter.add_(1)
        return outputs

    def _inputs(self, args: Any, kwargs: Any, in_dims: Any, per_particle: bool) -> Inputs:
        leaves, tree = pytree.tree_flatten((args, kwargs))
        self.check_devices(*leaves)
        axes: Any = [0 if per_particle else None] * len(leaves)
        if in_dims is not None:
            if per_particle:
                raise ValueError("give in_dims or per_particle=True, not both")
            dims = tuple(in_dims) if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
            if len(dims) != len(args):
                raise ValueError(f"in_dims has {len(dims)} entries for {len(args)} inputs")
            axes = pytree._broadcast_to_and_flatten((dims, dict.fromkeys(kwargs)), tree)
            if axes is None:
                raise ValueError(f"in_dims must be nested like the inputs, got {in_dims}")
        return Inputs(leaves, list(map(self._axis, leaves, axes)), tree)

    def _axis(self, leaf: Any, dim: Any) -> int | None:
        """The particle axis of an input: `dim`, or None if it is not a tensor."""
        if dim is None or not isinstance(leaf, Tensor):
            return None
        exists = isinstance(dim, int) and -leaf.dim() <= dim < leaf.dim()
        if not exists or leaf.shape[dim] != self.n:
            raise ValueError(
                f"an input per particle needs {self.n} entries along axis {dim}, "
                f"got shape {tuple(leaf.shape)}"
            )
        return dim % leaf.dim()

    def _stacked_tensors(self) -> list[Tensor]:
        """The tensors `[N, ...]` that fill the slots, by number."""
        tensors: dict[int, Tensor] = {}
        for slot in self._slots:
            tensor = slot.table.get(slot.name)
            if tensor is None:
                raise RuntimeError(
                    f"the ensemble has lost its tensor {slot.name!r}: prune or reparametrise the "
                    "networks before they become an ensemble"
                )
            tensors[slot.number] = tensor
        return [tensors[number] for number in range(len(tensors))]

    def _chunks(self, tensors: list[Tensor], inputs: Inputs) -> list[tuple[Any, ...]]:
        """(tensors, indices, inputs) of the particles that are computed at a time."""
        size = min(self.chunk_size or self.n, self.n)
        if size == self.n:
            return [(tensors, self._indices, inputs)]
        # split's backward is one concatenation; slicing would pad every chunk's gradient to N
        parts = [tensor.split(size) for tensor in tensors]
        chunks = []
        for number, start in enumerate(range(0, self.n, size)):
            length = min(size, self.n - start)
            own = inputs.of_particles(partial(torch.narrow, start=start, length=length))
            some = [part[number] for part in parts]
            for buffer in self._buffer_numbers:  # a recomputation must not see them updated
                some[buffer] = some[buffer].clone()
            chunks.append((some, self._indices[start : start + length], own))
        return chunks

    def _run_chunks(self, counter: Tensor, evaluating: bool, chunks: Any) -> Any:
        """Run one chunk after another; the backward pass runs each again with the same noise."""
        run: Callable[..., Any] = self._run
        if torch.is_grad_enabled():
            # The state of torch's generators cannot be read while a CUDA graph is recorded.
            recording = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=not recording)
        before = self._attributes()
        results = []
        for chunk in chunks:
            results.append(run(counter.clone(), evaluating, *chunk))
            if self._attributes() != before:
                raise RuntimeError(
                    "this network keeps a tensor as an attribute between calls, which chunks would "
                    "share: register it as a buffer, or use chunk_size=None"
                )
        trees, drawn = zip(*results, strict=True)
        leaves = zip(*map(tree_leaves, trees), strict=True)
        joined = [torch.cat(leaf) if isinstance(leaf[0], Tensor) else leaf[0] for leaf in leaves]
        return pytree.tree_unflatten(joined, pytree.tree_structure(trees[0])), drawn[0]

    def _attributes(self) -> dict[tuple[int, str], int]:
        """The tensors that layers hold besides parameters and buffers."""
        return {
            (number, name): id(value)
            for number, layer in enumerate(self._layers)
            for name, value in vars(layer).items()
            if isinstance(value, Tensor)
        }

    def _run(
        self,
        draw: Tensor,
        evaluating: bool,
        tensors: list[Tensor],
        indices: Tensor,
        inputs: Inputs,
    ) -> tuple[tuple[Any, dict[int, Tensor]], int]:
        """Run some particles: (outputs `[N, ...]`, buffers after it), number of random draws."""
        tensors = list(tensors)
        for number in self._buffer_numbers:
            tensors[number] = tensors[number].clone()  # a pass may be repeated
        # One network equals that network bit for bit. On a GPU in reduced precision the batched
        # kernels are faster even for one.
        reduced = self.device.type == "cuda" and self.precision != "float32" and self.fast
        with matrix_precision(self.precision, self.device), self._lock:
            if self.n == 1 and not reduced:
                tensors = [tensor[0] for tensor in tensors]
                inputs = inputs.of_particles(lambda tensor, axis: tensor.select(axis, 0))
                outputs, drawn = self._fill_and_call(draw, evaluating, tensors, indices[0], inputs)
                return _map_tensors(lambda tensor: tensor.unsqueeze(0), outputs), drawn
            n = len(indices)
            lazy_load_decompositions()
            try:
                with vmap_increment_nesting(n, "different") as level:
                    tensors = [_add_batch_dim(tensor, 0, level) for tensor in tensors]
                    index = _add_batch_dim(indices, 0, level)
                    inputs = inputs.of_particles(lambda t, axis: _add_batch_dim(t, axis, level))
                    outputs, drawn = self._fill_and_call(draw, evaluating, tensors, index, inputs)
                    leave = partial(_stacked_output, level=level, n=n)
                    return _map_tensors(leave, outputs), drawn
            except RuntimeError as error:
                _explain(error, self.template)
                raise

    def _fill_and_call(
        self, draw: Tensor, evaluating: bool, tensors: list[Tensor], index: Tensor, inputs: Inputs
    ) -> tuple[tuple[Any, dict[int, Tensor]], int]:
        """Call the network with these tensors in its slots: (output, buffers after it), draws."""

        def keys(stream: int) -> Tensor:
            return random.particle_keys(self.seed, draw, index, stream)

        args, kwargs = pytree.tree_unflatten(inputs.leaves, inputs.tree)
        stacked_tensors = [slot.table[slot.name] for slot in self._slots]
        modes = [layer.training for layer in self._layers] if evaluating else []
        try:
            for slot in self._slots:
                slot.table[slot.name] = tensors[slot.number]
            for layer in self._layers if evaluating else ():
                layer.training = False
            with ParticleRules(keys, self.fast) as rules:
                output = self.template(*args, **kwargs)
            # a network may write into its buffers or replace them
            buffers = {s.number: s.table[s.name] for s in self._slots if s.is_buffer}
        finally:
            for slot, tensor in zip(self._slots, stacked_tensors, strict=True):
                slot.table[slot.name] = tensor
            for layer, mode in zip(self._layers, modes, strict=False):
                layer.training = mode
        return (output, buffers), rules.drawn

    def check_devices(self, *inputs: Any) -> None:
        """Raise if a tensor is not on the particles' device."""
        for leaf in tree_leaves(inputs):
            if isinstance(leaf, Tensor) and leaf.device != self.device and leaf.dim() > 0:
                raise ValueError(
                    f"an input is on {leaf.device} but the particles are on {self.device}: "
                    "move one to the other with .to()"
                )

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Forward passes of this thread run in evaluation mode."""
        self._thread.evaluating = getattr(self._thread, "evaluating", 0) + 1
        try:
            yield
        finally:
            self._thread.evaluating -= 1

    @contextmanager
    def replay(self, draw: Tensor | None = None) -> Iterator[None]:
        """Forward passes draw the noise from count `draw` on; buffers and counter do not change.

        `draw` is a value of `noise_counter`; None: the noise of the next pass.
        """
        before = self._replayed
        now = self._draws if before is None else before
        self._replayed = (now if draw is None else draw).clone()
        try:
            yield
        finally:
            self._replayed = before

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> nn.Module:
        """Particle `index` as an ordinary module, detached from the ensemble."""
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


def _map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The tree with its tensors changed; None, numbers and others stay."""
    return tree_map_only(Tensor, function, tree)


def _stacked_output(tensor: Tensor, level: int, n: int) -> Tensor:
    """A tensor of one particle inside of `vmap` as `[N, ...]` outside."""
    return _remove_batch_dim(tensor, level, n, 0)


def _equal(first: nn.Module, other: nn.Module) -> bool:
    pairs = zip(first.parameters(), other.parameters(), strict=True)
    return all(torch.equal(one, two) for one, two in pairs)


def _chosen(indices: Sequence[int] | None, n: int) -> list[int]:
    """The indices of the particles to hold, of 0 to n - 1."""
    if indices is None:
        return list(range(n))
    chosen = [operator.index(index) for index in indices]
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(n)):
        raise ValueError(f"indices must be different numbers from 0 to {n - 1}, got {indices!r}")
    return chosen


def _whole(seed: SupportsIndex) -> int:
    """A Python int: initial values depend on the seed's `repr`, which differs for numpy's."""
    if not isinstance(seed, SupportsIndex):
        raise ValueError(f"seed must be a whole number, got {seed!r}")
    return operator.index(seed)


def _explain(error: RuntimeError, network: nn.Module) -> None:
    """Raise a message about the network for an error of `vmap`."""
    first = str(error).split(". ")[0]
    if "vmap" in first or "Batching rule" in first:
        raise RuntimeError(
            f"{type(network).__name__} cannot run for several particles at once: its forward pass "
            "does what torch.vmap does not, such as a branch on a tensor's value, .item(), or "
            f"writing into a tensor that it made ({first})"
        ) from error
