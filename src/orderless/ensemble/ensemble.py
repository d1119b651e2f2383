"""`Ensemble`: N networks as one `nn.Module`."""

import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self, SupportsIndex

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from . import random
from .device import find_device
from .initialization import Perturb, initial_modules
from .linear import FactoredUpdate
from .precision import PRECISIONS, matrix_precision
from .rules import ParticleRules
from .sharding import Shard
from .stacking import (
    check_same_shapes,
    check_stackable,
    clear_values,
    places_of,
    stack_into,
    tensors_of,
)


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


class Ensemble(nn.Module):
    """N networks as one module: parameters and buffers `[N, ...]` under the template's names.

    Args:
        make_model: a function that makes one network, or a network to use as the template.
        n: the number of particles.
        init: `"fresh"` (each from the module's own initialiser) or an `ol.Perturb`.
        seed: particle i depends on (seed, i) alone, whatever n, chunk size or device.
        chunk_size: at most this many particles are computed at a time; the backward pass
            recomputes a chunk's activations instead of storing them.
        precision: `"float32"`, `"tf32"` or `"bf16"`; the precision is never reduced silently.
        fast: use the batched rules for Linear, Conv2d, BatchNorm and pooling (`False`: plain
            `vmap` for everything, which gives the same results more slowly).
        group: a `torch.distributed` process group over whose ranks the particles are sharded. A
            rank holds `shard.count` particles, [shard.start, shard.stop), in parameters, buffers,
            inputs per particle and outputs; `n` and a filter's numbers refer to all particles.
            Every rank makes the same calls.

    A network may be any module that `torch.vmap` can run: no branch on a tensor's value, no
    `.item()`, no writing into a tensor that it made. Recurrent layers and tied weights work.

    `forward` shares its inputs between particles by default and returns the network's outputs with
    a leading N on every leaf. Dropout is keyed on (seed, draw, i); other random functions inside a
    network differ between particles but are not keyed.
    """

    n: int
    seed: int
    _draws: Tensor
    _indices: Tensor

    def __init__(
        self,
        make_model: Callable[[], nn.Module] | nn.Module,
        n: int,
        init: str | Perturb = "fresh",
        seed: int = 0,
        *,
        chunk_size: int | None = None,
        precision: str = "float32",
        fast: bool = True,
        device: torch.device | str | None = None,
        group: Any = None,
    ) -> None:
        if not isinstance(n, SupportsIndex) or operator.index(n) < 1:
            raise ValueError(f"n must be a whole number of at least 1, got {n!r}")
        seed = _whole(seed)
        shard = Shard(operator.index(n), group)
        modules = initial_modules(make_model, range(shard.start, shard.stop), init, seed)
        self._build(list(modules), shard, seed, chunk_size, precision, fast)
        self.to(device)

    def to(self, *args: Any, **options: Any) -> Self:
        """`nn.Module.to`, with a clear error for a device that does not exist."""
        device = options.get("device", args[0] if args else None)
        if isinstance(device, str | torch.device):
            find_device(device)
        return super().to(*args, **options)

    @classmethod
    def from_modules(cls, modules: Sequence[nn.Module], *, seed: int = 0, **options: Any) -> Self:
        """Stack existing networks of one architecture; `options` as in the constructor.

        With a group every rank passes all networks and keeps its own part.
        """
        if not modules:
            raise ValueError("from_modules needs at least one module, got none")
        ensemble = cls.__new__(cls)
        device, shard = options.pop("device", None), Shard(len(modules), options.pop("group", None))
        ensemble._build(list(modules)[shard.start : shard.stop], shard, seed, **options)
        return ensemble.to(device)

    @torch.inference_mode(False)  # inference tensors could never be loaded or trained
    def _build(
        self,
        modules: list[nn.Module],
        shard: Shard,
        seed: int,
        chunk_size: int | None = None,
        precision: str = "float32",
        fast: bool = True,
    ) -> None:
        super().__init__()
        check_stackable(modules)
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        self.n, self.shard, self.seed = shard.n, shard, _whole(seed)
        self.chunk_size, self.precision, self.fast = chunk_size, precision, fast
        # The template runs every forward pass with other tensors in its place. A tuple hides it
        # from nn.Module, so that its own parameters are neither trained, moved nor saved.
        self._hidden = (copy.deepcopy(modules[0]),)
        self._places = places_of(self._hidden[0])
        clear_values(self._hidden[0])
        stack_into(self, modules)
        super().train(modules[0].training)  # the template keeps the flags of its layers
        self.register_buffer("_draws", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("_indices", torch.arange(shard.start, shard.stop), persistent=False)
        self._replayed: Tensor | None = None  # the noise counter of a replay
        self._update: FactoredUpdate | None = None

    @property
    def template(self) -> nn.Module:
        """One network of the ensemble's architecture; its own numbers are NaN."""
        return self._hidden[0]

    @property
    def device(self) -> torch.device:
        return self._draws.device

    @property
    def indices(self) -> Tensor:
        """The indices of this rank's particles among all N: `[count]`; random keys use them."""
        return self._indices

    @property
    def noise_counter(self) -> Tensor:
        """The number of forward passes that have drawn noise, a scalar; see `replay`."""
        return self._draws

    def train(self, mode: bool = True) -> Self:
        self.template.train(mode)
        return super().train(mode)

    def particle_buffers(self) -> dict[str, Tensor]:
        """The networks' buffers `[N, ...]`, by the template's names."""
        own = ("_draws", "_indices")
        return {name: b for name, b in self.named_buffers() if name not in own}

    def forward(
        self, *args: Any, in_dims: Any = None, per_particle: bool = False, **kwargs: Any
    ) -> Any:
        """Run all networks. Inputs are shared; `per_particle=True` takes `[N, B, ...]` inputs.

        `in_dims` gives an axis (or None) for each positional argument, as in `torch.vmap`.
        """
        leaves, tree = pytree.tree_flatten((args, kwargs))
        self.check_devices(*leaves)
        axes: Any = [0 if per_particle else None] * len(leaves)
        if in_dims is not None and not per_particle:
            dims = tuple(in_dims) if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)
            if len(dims) != len(args):
                raise ValueError(f"in_dims has {len(dims)} entries for {len(args)} inputs")
            axes = pytree._broadcast_to_and_flatten((dims, dict.fromkeys(kwargs)), tree)
            if axes is None:
                raise ValueError(f"in_dims must be nested like the inputs, got {in_dims}")
        inputs = Inputs(leaves, list(map(self._axis, leaves, axes)), tree)
        parameters: dict[str, Tensor] = dict(self.named_parameters())
        buffers = self.particle_buffers()
        counter = draw = self._draws if self._replayed is None else self._replayed
        run: Callable[..., Any] = self._run
        if torch.is_grad_enabled() and (self.chunk_size or self.shard.count) < self.shard.count:
            # `_run` has no side effects, so the backward pass may run it again with the same noise.
            # The state of torch's generators cannot be read while a CUDA graph is recorded.
            recording = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            run = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=not recording)
            draw = counter.clone()
        outputs, new_buffers, drawn = [], [], 0
        for chunk in self._chunks(parameters, buffers, inputs):
            output, updated, drawn = run(draw, *chunk)
            outputs.append(output)
            new_buffers.append(updated)
        if self._replayed is None:
            with torch.no_grad():
                for name, buffer in buffers.items():
                    buffer.copy_(torch.cat([chunk[name] for chunk in new_buffers]))
        if drawn:
            counter.add_(1)
        return outputs[0] if len(outputs) == 1 else tree_map(lambda *o: torch.cat(o), *outputs)

    def _axis(self, leaf: Any, dim: Any) -> int | None:
        """The particle axis of an input: `dim`, or None if it is not a tensor."""
        if dim is None or not isinstance(leaf, Tensor):
            return None
        there = isinstance(dim, int) and -leaf.dim() <= dim < leaf.dim()
        if not there or leaf.shape[dim] != self.shard.count:
            raise ValueError(
                f"an input per particle needs {self.shard.count} entries along axis {dim}, "
                f"got shape {tuple(leaf.shape)}"
            )
        return dim

    def _run(
        self,
        draw: Tensor,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        indices: Tensor,
        inputs: Inputs,
    ) -> tuple[Any, dict[str, Tensor], int]:
        """Run one chunk: (outputs with a leading axis, buffers after the pass, random draws)."""
        drawn, stacked = 0, parameters

        def network(
            parameters: Any, buffers: Any, index: Tensor, leaves: list[Any]
        ) -> tuple[Any, Any]:
            nonlocal drawn

            def keys(stream: int) -> Tensor:
                return random.particle_keys(self.seed, draw, index, stream)

            with ParticleRules(keys, self._update, self.fast) as rules:
                rules.watch(parameters, stacked)
                given = {**parameters, **buffers}
                tensors = {place: given[name] for place, name in self._places.items()}
                args, kwargs = pytree.tree_unflatten(leaves, inputs.tree)
                # writes the buffers that the network reassigns (a running mean) back to `tensors`
                output = functional_call(self.template, tensors, args, kwargs, tie_weights=False)
            drawn = rules.drawn
            return output, {name: tensors[name] for name in buffers}

        buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        with matrix_precision(self.precision, self.device):
            # One network equals that network bit for bit. A shard of one must equal the same
            # particle among others, and on a GPU in reduced precision the batched kernels are
            # faster even for one.
            reduced = self.device.type == "cuda" and self.precision != "float32" and self.fast
            if len(indices) == 1 and self.shard.count == self.n and not reduced:
                first = tree_map(lambda t: t[0], (parameters, buffers, indices))
                alone = inputs.of_particles(lambda tensor, axis: tensor.select(axis, 0))
                output, updated = network(*first, alone.leaves)  # type: ignore[call-arg]
                output = tree_map(lambda t: t.unsqueeze(0), output)
                updated = {name: buffer.unsqueeze(0) for name, buffer in updated.items()}
            else:
                batched = torch.vmap(network, (0, 0, 0, inputs.axes), randomness="different")
                try:
                    output, updated = batched(parameters, buffers, indices, inputs.leaves)
                except RuntimeError as error:
                    _explain(error, self.template)
                    raise
        return output, updated, drawn

    def _chunks(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Inputs
    ) -> Iterator[tuple[Any, ...]]:
        count = self.shard.count
        size = min(self.chunk_size or count, count)
        if size == count:
            yield parameters, buffers, self._indices, inputs
            return
        # split's backward is one concatenation; slicing would pad every chunk's gradient to N
        parts = {name: p.split(size) for name, p in parameters.items()}
        for number, start in enumerate(range(0, count, size)):
            end = min(start + size, count)
            yield (
                {name: part[number] for name, part in parts.items()},
                # a copy: a recomputation must not see the updated buffers
                {name: b[start:end].clone() for name, b in buffers.items()},
                self._indices[start:end],
                inputs.of_particles(partial(torch.narrow, start=start, length=end - start)),
            )

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
        """Evaluation mode; on exit every layer returns to the mode it was in."""
        modes = [(m, m.training) for m in (*self.modules(), *self.template.modules())]
        self.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

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

    @contextmanager
    def factoring(self, update: FactoredUpdate | None) -> Iterator[None]:
        """Backward passes add Linear weight gradients to `update`; forward passes apply it."""
        self._update = update
        try:
            yield
        finally:
            self._update = None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> nn.Module:
        """Particle `index` as an ordinary module, detached from the ensemble.

        With a group all ranks must ask for the same particle, and all get it.
        """
        index = self._check_index(index)
        module = copy.deepcopy(self.template).to(self.device)
        stacked = self.tensors()
        with torch.no_grad():
            for name, tensor in tensors_of(module).items():
                tensor.data = self.shard.pick(stacked[name], index).detach().clone()
        return module

    @torch.no_grad()
    def load_particle(self, index: int, module: nn.Module) -> None:
        """Write an ordinary module's parameters and buffers into particle `index`.

        With a group only the rank that holds the particle does.
        """
        index = self._check_index(index)
        stacked, tensors = self.tensors(), tensors_of(module)
        shapes = {name: tensor.shape[1:] for name, tensor in stacked.items()}
        check_same_shapes(shapes, tensors, "the module is of another architecture")
        if self.shard.start <= index < self.shard.stop:
            for name, tensor in tensors.items():
                stacked[name][index - self.shard.start].copy_(tensor)

    def tensors(self) -> dict[str, Tensor]:
        """All parameters and buffers `[N, ...]`, by the template's names."""
        return {**dict(self.named_parameters()), **self.particle_buffers()}

    def _check_index(self, index: int) -> int:
        index = operator.index(index)
        if not -self.n <= index < self.n:
            raise IndexError(f"particle {index} does not exist: there are {self.n}")
        return index % self.n

    def extra_repr(self) -> str:
        return f"n={self.n}, seed={self.seed}, precision={self.precision!r}"


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
