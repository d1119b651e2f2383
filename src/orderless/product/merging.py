"""The sums of one task, and the merged networks computed from the sums of all tasks."""

import hashlib

import torch
from torch import Tensor

from ..ensemble import Ensemble
from ..ensemble.stacking import check_same_shapes
from .layers import Layer
from .moments import TaskMoments, running_statistics
from .statistics import ExactSum, LayerSums, TaskSums


def task_sums(
    particles: Ensemble,
    layers: dict[str, Layer],
    start: dict[str, Tensor],
    moments: TaskMoments,
    reached: Tensor | None,
    alive: Tensor,
) -> TaskSums:
    """The sums of one task, given the output columns `reached` by its loss and who is `alive`."""
    now = particles.tensors()
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
    # a hash of particle 0's weights and moments, the same on all ranks
    name = int.from_bytes(digest.digest()[:7], "little")
    names = torch.full((len(alive),), name, dtype=torch.int64, device=alive.device)
    task = int(particles.shard.pick(names, 0))
    statistics = _statistics(particles, start, moments, now)
    return TaskSums(found, statistics, ExactSum.of(scalars), moments.samples, (task,))


def _heads(layers: dict[str, Layer], moments: TaskMoments, reached: Tensor | None) -> set[str]:
    """Layers that compute the network's outputs, if the loss does not depend on all of these."""
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
        n = moments.counts[place].unsqueeze(1).expand_as(mean)
        sums = [n, n * mean, n * (variance + mean.square())]
        found[place] = ExactSum.of(torch.stack(sums, dim=1))
        known |= {*names, names[0].replace("running_mean", "num_batches_tracked")}
    for name in particles.particle_buffers():
        if name not in known and not torch.equal(now[name], start[name]):
            raise ValueError(f"the product cannot merge the buffer {name!r}: training changed it")
    return found


def check_same_start(start: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Raise `ValueError` if two products have different networks or priors."""
    shapes = {name: tensor.shape for name, tensor in start.items()}
    check_same_shapes(shapes, other, "these filters are of different networks")
    for name, ours in start.items():
        if not torch.equal(ours, other[name].to(ours.device)):
            raise ValueError(
                f"these filters have different starts: {name!r} differs; only tasks that started "
                "from the same networks can be multiplied, build both ensembles from the same seed"
            )


def posterior_mean(
    gram: Tensor, cross: Tensor, start: Tensor, prior_precision: float | None
) -> tuple[Tensor, Tensor]:
    """W = (p_0 I + sum G)^-1 (p_0 W_0 + sum G W) `[g, d, K]`, and its terms of log Z.

    `gram` `[g, d, d]`, `cross` and `start` `[g, d, K]`. The terms of log Z are those that contain
    W, see `product.py`; those with L_t and tr W_t^T G_t W_t are sums over tasks.
    """
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    if not diagonal.any():  # no data
        return start, gram.new_zeros(())
    p_0 = 1e-3 * diagonal.mean() if prior_precision is None else gram.new_tensor(prior_precision)
    precision = gram.clone()
    precision.diagonal(dim1=-2, dim2=-1).add_(p_0)
    factor = torch.linalg.cholesky(precision)
    target = p_0 * start + cross
    mean = torch.cholesky_solve(target, factor)
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum()
    rows, columns = diagonal.numel(), start.shape[-1]
    log_z = 0.5 * ((mean * target).sum() - p_0 * start.square().sum())
    return mean, log_z + 0.5 * columns * (rows * p_0.log() - log_det)


def merged_tensors(
    particles: Ensemble,
    layers: dict[str, Layer],
    start: dict[str, Tensor],
    sums: TaskSums,
    prior_precision: float | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Parameters and buffers of the merged networks, and each one's log Z `[N]`."""
    merged = dict(start)
    for place, (mean_name, variance_name) in running_statistics(particles).items():
        n, total, squares = sums.statistics[place].value.unbind(1)
        mean = total / n
        variance = (squares / n - mean.square()).clamp(min=0.0)
        for name, value in ((mean_name, mean), (variance_name, variance)):
            merged[name] = torch.where(n > 0, value, start[name].double())
    losses, quadratic, _ = sums.scalars.value.unbind(1)
    log_z = -losses - 0.5 * quadratic
    for layer in dict.fromkeys(layers.values()):
        mean, gain = merged_layer(sums.layers[layer.name], layer.matrix(start), prior_precision)
        merged |= layer.parameters(mean, start)
        log_z += gain
    return merged, log_z


def merged_layer(
    sums: LayerSums, start: Tensor, prior_precision: float | None
) -> tuple[Tensor, Tensor]:
    """W `[N, g, d, K]`, and its terms of log Z `[N]`, for columns with equal sums at once."""
    merged, log_z, cross = start.clone(), start.new_zeros(len(start)), sums.cross.value
    for part in dict.fromkeys(sums.parts):
        columns = [k for k, own in enumerate(sums.parts) if own == part]
        for i in range(len(start)):
            gram = sums.grams.high[part, i] + sums.grams.low[part, i]
            own_cross, own_start = cross[i][..., columns], start[i][..., columns]
            mean, gain = posterior_mean(gram, own_cross, own_start, prior_precision)
            merged[i][..., columns] = mean
            log_z[i] += gain
    return merged, log_z
