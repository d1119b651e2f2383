"""Statistics of one task: moments of its layers' inputs, and the output columns of its loss."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.pairs import Data, is_pair, pairs
from ..ensemble.stacking import places_of
from ..filters.step import check_losses
from .layers import Layer

Losses = Callable[[Tensor, Tensor], Tensor]  # (outputs [N, B, ...], y) -> [N]
PATCHES = 1 << 24  # numbers of patches formed at a time, for all particles
INPUTS = 1 << 25  # numbers of inputs in a batch, for all particles
MOST, WORDS = 1024, 512  # samples in a batch of floats, of integers: activations may be larger


@dataclass
class TaskMoments:
    """Sums over a task's data for the present networks; dicts and sets by the name of a layer."""

    grams: dict[str, Tensor]  # [N, g, d, d]
    counts: dict[str, Tensor]  # [N], values per channel of each BatchNorm, by its place
    losses: Tensor  # [N]
    heads: set[str] = field(default_factory=set)  # layers whose outputs are the network's
    called: set[str] = field(default_factory=set)  # layers that were used
    samples: int = 0


@torch.no_grad()
def task_moments(
    particles: Ensemble, layers: dict[str, Layer], data: Data, loss: Losses | None = None
) -> TaskMoments:
    """Compute the moments in one pass over the data, in evaluation mode."""
    held, device = particles.shard.count, particles.device
    real: Any = {"dtype": torch.float64, "device": device}
    moments = TaskMoments(
        {
            layer.name: torch.zeros(held, layer.blocks, layer.width, layer.width, **real)
            for layer in layers.values()
        },
        {place: torch.zeros(held, **real) for place in running_statistics(particles)},
        torch.zeros(held, **real),
    )
    with particles.evaluating(), _watching(particles, layers, moments.heads):
        for x, y in batches(data, particles.n):
            try:
                outputs, grams, counts = particles(x.to(device))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                shape = list(x.shape)
                raise ValueError(f"the networks do not take data {shape}: {error}") from error
            for name, gram in grams.items():
                moments.grams[name] += gram
            for place, count in counts.items():
                moments.counts[place] += count
            moments.called |= grams.keys()
            moments.samples += len(x)
            if loss is not None:
                losses = loss(outputs, y.to(device))
                check_losses(losses, particles, "loss")
                moments.losses += losses.double()
    if not moments.samples:
        raise ValueError("the data holds no samples: end_task needs at least one")
    return moments


@contextmanager
def _watching(particles: Ensemble, layers: dict[str, Layer], heads: set[str]) -> Iterator[None]:
    """Add hooks that make the particles return (outputs, grams of a batch, counts of a batch).

    They run inside the forward pass, once for all particles; a shared input is multiplied once.
    """
    grams: dict[str, Tensor] = {}
    counts: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}  # the layers' outputs
    portion = max(1, PATCHES // particles.n)

    def watch(place: str, module: nn.Module) -> Any:
        layer = layers.get(place)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Tensor) -> None:
            x = args[0] if args else kwargs["input"]
            if layer is not None:
                gram = layer.gram(module, x, portion)
                grams[layer.name] = grams[layer.name] + gram if layer.name in grams else gram
                last[layer.name] = output
            if keeps_statistics(module):
                count = torch.tensor(x.numel() / x.shape[1], dtype=torch.float64, device=x.device)
                counts[place] = counts[place] + count if place in counts else count

        return module.register_forward_hook(hook, with_kwargs=True)

    def whole(module: nn.Module, args: Any, outputs: Any) -> Any:
        heads.update(name for name, output in last.items() if output is outputs)
        found = outputs, dict(grams), dict(counts)
        for each in (grams, counts, last):
            each.clear()
        return found

    template = particles.template
    handles = [
        watch(place, module)
        for place, module in template.named_modules()
        if place in layers or keeps_statistics(module)
    ]
    handles.append(template.register_forward_hook(whole))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a module is a BatchNorm with running statistics."""
    normalises = isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
    return normalises and module.running_mean is not None


def running_statistics(particles: Ensemble) -> dict[str, tuple[str, str]]:
    """The names of the running mean and variance of every BatchNorm, by its place."""
    found, names = {}, places_of(particles.template)
    for place, module in particles.template.named_modules():
        if keeps_statistics(module):
            prefix = f"{place}." if place else ""
            found[place] = names[f"{prefix}running_mean"], names[f"{prefix}running_var"]
    return found


def batches(data: Data, n: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (x, y): those given, or one pair split into batches of bounded memory."""
    for x, y in pairs(data):
        size = len(x)
        if is_pair(data):
            most = MOST if x.is_floating_point() else WORDS
            size = min(most, INPUTS // max(1, n * x[:1].numel()))
        yield from zip(x.split(max(1, size)), y.split(max(1, size)), strict=True)


def reached_columns(particles: Ensemble, closures: Sequence[Callable[[], Any]]) -> Tensor | None:
    """The output columns `[C]` on which the losses depend; None for outputs without columns.

    The gradient at the outputs themselves is not enough: it is zero for a head that starts at zero
    and targets of zero. So the gradient is taken at randomly displaced outputs. Parameters,
    buffers, gradients and random generators do not change.
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
        parameter.requires_grad_(False)  # autograd state made here would break a recorded step
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
