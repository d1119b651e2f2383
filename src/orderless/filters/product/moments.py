"""What is looked at in a task: its layers' inputs, in one pass, and the columns of its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...particles import Ensemble
from ...particles.precision import matrix_precision
from ...particles.stacking import places_of
from .layers import CONVOLUTIONS, Layer

# A pair of tensors (x, y), or batches of such pairs.
Data = tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
Losses = Callable[[Tensor, Tensor], Tensor]  # (outputs [N, B, ...], y) -> [N]
SEE_INPUTS_ALONE = nn.Linear, *CONVOLUTIONS, nn.Embedding  # no statistics of a particle's own
BATCH = 512  # samples per pass, of data that comes in one piece


@dataclass
class TaskMoments:
    """What a task's data says of the networks as they stand; by layer's name where by name.

    `grams` `[N, g, d, d]`, `counts` how many values a channel of each BatchNorm (by place) was
    given, `losses` `[N]` summed over the data, `heads` the layers whose outputs are the network's.
    """

    grams: dict[str, Tensor]
    losses: Tensor
    counts: dict[str, int] = field(default_factory=dict)
    heads: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    samples: int = 0


@torch.no_grad()
def task_moments(
    particles: Ensemble, layers: dict[str, Layer], data: Data, loss: Losses | None = None
) -> TaskMoments:
    """Stream over the data in evaluation mode; no activation is kept."""
    held, device = particles.shard.count, particles.device
    real: Any = {"dtype": torch.float64, "device": device}
    grams = {
        layer.name: torch.zeros(held, layer.blocks, layer.width, layer.width, **real)
        for layer in layers.values()
    }
    moments = TaskMoments(grams, torch.zeros(held, **real))
    precise = matrix_precision(particles.precision, device)
    with particles.evaluating(), precise:
        for x, y in batches(data):
            x, y = x.to(device), y.to(device)
            shared: dict[Any, Tensor] = {}
            outputs = [_run(particles, i, layers, x, moments, shared) for i in range(held)]
            moments.samples += len(x)
            if loss is not None:
                moments.losses += _losses(loss, outputs, y, held)
    if not moments.samples:
        raise ValueError("the data holds no samples: end_task needs at least one")
    return moments


def _run(
    particles: Ensemble,
    i: int,
    layers: dict[str, Layer],
    x: Tensor,
    moments: TaskMoments,
    shared: dict[Any, Tensor],
) -> Any:
    """Particle i's outputs for one batch; its layers' inputs go into `moments`.

    `shared` keeps the products of layers that look at the batch itself: all particles have them.
    """
    own = {n: p.detach()[i] for n, p in particles.named_parameters()}
    own |= {n: buffer[i] for n, buffer in particles.particle_buffers().items()}
    tensors = {place: own[name] for place, name in places_of(particles.template).items()}

    def gram(place: str, module: nn.Module, inputs: Tensor) -> Tensor:
        of_batch = inputs.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        if not of_batch or not isinstance(module, SEE_INPUTS_ALONE):
            return layers[place].gram(module, inputs)
        key = place, inputs.data_ptr(), inputs.shape, inputs.stride()
        if key not in shared:
            shared[key] = layers[place].gram(module, inputs)
        return shared[key]

    with _watching(particles.template, layers, i, moments, gram) as last:
        outputs = functional_call(particles.template, tensors, (x,), tie_weights=False)
    moments.heads |= {name for name, output in last.items() if output is outputs}
    return outputs


@contextmanager
def _watching(
    template: nn.Module,
    layers: dict[str, Layer],
    i: int,
    moments: TaskMoments,
    gram: Callable[[str, nn.Module, Tensor], Tensor],
) -> Iterator[dict[str, Tensor]]:
    """Hooks that add a layer's products when it is called; yields the layers' last outputs."""
    last: dict[str, Tensor] = {}

    def watch(place: str, module: nn.Module) -> Any:
        layer = layers.get(place)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Tensor) -> None:
            x = args[0] if args else kwargs["input"]
            if layer is not None:
                moments.grams[layer.name][i] += gram(place, module, x)
                moments.called.add(layer.name)
                last[layer.name] = output
            if i == 0 and keeps_statistics(module):
                moments.counts[place] = moments.counts.get(place, 0) + x.numel() // x.shape[1]

        return module.register_forward_hook(hook, with_kwargs=True)

    handles = [
        watch(place, module)
        for place, module in template.named_modules()
        if place in layers or keeps_statistics(module)
    ]
    try:
        yield last
    finally:
        for handle in handles:
            handle.remove()


def keeps_statistics(module: nn.Module) -> bool:
    """Whether this is a BatchNorm with running statistics."""
    normalises = isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
    return normalises and module.running_mean is not None


def running_statistics(particles: Ensemble) -> dict[str, tuple[str, str]]:
    """The names of mean and variance of every BatchNorm that keeps them, by its place."""
    found, names = {}, places_of(particles.template)
    for place, module in particles.template.named_modules():
        if keeps_statistics(module):
            prefix = f"{place}." if place else ""
            found[place] = names[f"{prefix}running_mean"], names[f"{prefix}running_var"]
    return found


def _losses(loss: Losses, outputs: list[Any], y: Tensor, held: int) -> Tensor:
    losses = loss(torch.stack(outputs), y)
    if not isinstance(losses, Tensor) or losses.shape != (held,):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"loss must give one number per particle, shape ({held},), got {got}: ol.per_particle "
            "turns a loss for one network into such a function"
        )
    return losses.double()


def batches(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (x, y): those given, or one pair cut into batches."""
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise TypeError(f"{EXPECTED}, got {type(data).__name__}")
    given: Any = data
    pair = isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], Tensor)
    for batch in [given] if pair else given:
        tensors = isinstance(batch, (tuple, list)) and all(isinstance(t, Tensor) for t in batch)
        if not tensors or len(batch) != 2 or len(batch[0]) != len(batch[1]):
            raise ValueError(EXPECTED)
        size = BATCH if pair else max(1, len(batch[0]))
        yield from zip(batch[0].split(size), batch[1].split(size), strict=True)


EXPECTED = (
    "data must be two tensors (x, y) with as many labels as samples, or batches of such pairs as "
    "a DataLoader gives them"
)


def reached_columns(particles: Ensemble, closures: Sequence[Callable[[], Any]]) -> Tensor | None:
    """The output columns `[C]` whose scores the losses depend on; None where outputs have none.

    A gradient of zero at the outputs alone would not tell: a head that starts at zero meets targets
    of zero without any. So the losses are looked at where the outputs have been moved at random.
    Nothing changes: neither parameters, buffers, gradients nor noise.
    """
    moved: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)

    def move(module: nn.Module, args: Any, outputs: Any) -> Any:
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
            return outputs
        noise = torch.randn(outputs.shape, generator=generator).to(outputs)
        moved.append((outputs.detach() + noise).requires_grad_())
        return moved[-1]

    trained = [p for p in particles.parameters() if p.requires_grad]
    devices = [particles.device] if particles.device.type == "cuda" else []
    hook = particles.register_forward_hook(move)
    for parameter in trained:
        parameter.requires_grad_(False)  # a recorded step must not meet what autograd notes here
    try:
        with (
            torch.enable_grad(),
            particles.replay(particles.noise_counter),
            torch.random.fork_rng(devices),
        ):
            found = [closure() for closure in closures]
    finally:
        hook.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
    losses = [each[0] if isinstance(each, tuple) else each for each in found]
    usable = [loss for loss in losses if isinstance(loss, Tensor) and loss.requires_grad]
    if not moved or not usable or len({outputs.shape[-1] for outputs in moved}) > 1:
        return None
    slopes = torch.autograd.grad([loss.sum() for loss in usable], moved, allow_unused=True)
    felt = [(slope != 0).flatten(0, -2).any(0) for slope in slopes if slope is not None]
    return torch.stack(felt).any(0)
