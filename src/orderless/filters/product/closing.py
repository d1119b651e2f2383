"""A task that ends: from its moments and weights to the sums that are kept, or a refusal."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from ...particles import Ensemble
from .layers import Layer
from .moments import TaskMoments, running_statistics
from .statistics import LayerSums, TaskSums
from .sums import ExactSum


def task_sums(
    particles: Ensemble,
    layers: dict[str, Layer],
    start: dict[str, Tensor],
    moments: TaskMoments,
    reached: Tensor | None,
    alive: Tensor,
) -> TaskSums:
    """The sums of one task. `reached`: its output columns; `alive`: who has lived through it."""
    now = particles._stacked()
    heads = _heads(layers, moments, reached)
    found: dict[str, LayerSums] = {}
    quadratic, digest = torch.zeros_like(moments.losses), hashlib.sha256()
    for layer in dict.fromkeys(layers.values()):
        matrix = layer.matrix(now)
        if layer.name not in moments.called and not torch.equal(matrix, layer.matrix(start)):
            raise ValueError(
                f"{layer.name!r} was trained, but no call of its layer was seen: the product "
                "cannot merge weights that are used without their module"
            )
        gram = torch.where(alive.view(-1, 1, 1, 1), moments.grams[layer.name], 0.0)
        sums = LayerSums.of_task(gram, matrix, reached if layer.name in heads else None)
        found[layer.name] = sums
        quadratic += (matrix * sums.cross.value).flatten(1).sum(1)
        for values in (matrix[0], gram[0].diagonal(dim1=-2, dim2=-1)):
            digest.update(values.cpu().contiguous().numpy().tobytes())
    losses = torch.where(alive, moments.losses, 0.0)
    scalars = torch.stack([losses, quadratic, (~alive).double()], dim=1)
    # by the weights and moments of particle 0, whoever holds it: all ranks give the same name
    name = int.from_bytes(digest.digest()[:7], "little")
    names = torch.full((len(alive),), name, dtype=torch.int64, device=alive.device)
    task = int(particles.shard.pick(names, 0))
    statistics = _statistics(particles, start, moments, now)
    return TaskSums(found, statistics, ExactSum.of(scalars), moments.samples, (task,))


def _heads(layers: dict[str, Layer], moments: TaskMoments, reached: Tensor | None) -> set[str]:
    """Layers whose columns are the outputs', where the loss does not reach all of those."""
    if reached is None or reached.all():
        return set()
    columns = {layer.name: layer.columns for layer in layers.values() if layer.blocks == 1}
    heads = {name for name in moments.heads if columns.get(name) == len(reached)}
    if not heads:
        missing = (~reached).nonzero().flatten().tolist()
        raise ValueError(
            f"the loss does not depend on outputs {missing}, and the product can leave them out "
            "only where the outputs come straight from a Linear layer"
        )
    return heads


def _statistics(
    particles: Ensemble, start: dict[str, Tensor], moments: TaskMoments, now: dict[str, Tensor]
) -> dict[str, ExactSum]:
    """n, n mean and n (var + mean^2) of running statistics; other buffers must not change."""
    found, known = {}, set()
    for place, names in running_statistics(particles).items():
        mean, variance = (now[name].double() for name in names)
        n = torch.full_like(mean, moments.counts.get(place, 0))
        sums = [n, n * mean, n * (variance + mean.square())]
        found[place] = ExactSum.of(torch.stack(sums, dim=1))
        known |= {*names, names[0].replace("running_mean", "num_batches_tracked")}
    for name in particles.particle_buffers():
        if name not in known and not torch.equal(now[name], start[name]):
            raise ValueError(
                f"the product cannot merge the buffer {name!r}, which training has changed"
            )
    return found
