"""The product of task posteriors: learned features, and a result without a task order.

p(x | D_1, ..., D_T) is proportional to p_0(x) times a product of likelihoods, and products commute.
So every task starts from the *same* networks x_0, trains on its own data alone, and adds to two
sums per layer: with a the layer's inputs on the task's data (including a constant 1) and W_t its
trained weights,

    G_t = sum_{x in D_t} a(x) a(x)^T    and    G_t W_t.

Each task's posterior of the layer is approximated by N(W_t, (G_t x I)^-1), and the prior is
N(W_0, I / p_0). Predictions use the mean of their product:

    W = (p_0 I + sum_t G_t)^-1 (p_0 W_0 + sum_t G_t W_t)

Exact: for one Linear layer under squared error, trained to convergence, this is the ridge solution
on all data; and the sums have no rounding (`statistics.py`), so that equal (W_t, G_t) give equal
bits in any order of the tasks. Approximate: each layer is merged by itself, as if the others had
not changed; a task's precision is that of squared error.

The evidence of a particle, with K columns and d rows of W, in the same approximation:

    log Z = - sum_t L_t(W_t)
            - 1/2 [sum_t tr W_t^T G_t W_t + p_0 |W_0|^2 - tr W^T (p_0 I + sum_t G_t) W]
            + K/2 [d log p_0 - log |p_0 I + sum_t G_t|]

Relatives: RegMean (Jin et al., 2023) merges language models by the same formula without a prior;
Fisher merging (Matena and Raffel, 2022) has a diagonal in place of G_t; consensus Monte Carlo
(Scott et al., 2016) multiplies posteriors of shards. See docs/methods/product.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..ensemble.pairs import Data
from ..ensemble.stacking import check_same_shapes
from ..filters.averaging import AveragingParticles
from ..filters.base import Link, Predictor, copied
from ..filters.step import Closure, StepInfo
from ..filters.weights import log_mean, normalize
from .layers import check_memory, find_layers
from .merging import check_same_start, merged_tensors, task_sums
from .moments import Losses, reached_columns, task_moments
from .statistics import TaskSums


class PosteriorProduct(Predictor):
    """Train tasks from the same start with `step`, end them with `end_task`, predict at any time.

    Args:
        particles: the networks with which every task starts. Parameters that do not require a
            gradient are not changed.
        make_optimizer: called with the trained parameters once per task.
        prior_precision: p_0; None: 1e-3 of the mean diagonal of sum_t G_t, layer by layer.
        weights: `"uniform"`, or `"evidence"`: w_i proportional to Z_i, which needs the loss at
            `end_task`. It is the evidence for one Linear layer under squared error at
            convergence, and a heuristic for anything else.

    `predict` and `outputs` use the merged `networks` of the finished tasks (x_0 before the first).
    `a + b` has the finished tasks of both, `a - b` those of a without those of b.

    The order of tasks has no effect if training a task is reproducible: the loss must not depend on
    earlier tasks, nor draw from torch's own generator (dropout does not).

    Memory: 16 bytes per entry of G_t, for every layer and particle, independent of the number of
    tasks; `end_task` needs 40 more temporarily.
    """

    def __init__(
        self,
        particles: Ensemble,
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        prior_precision: float | None = None,
        weights: str = "uniform",
        link: Link = "softmax",
    ) -> None:
        super().__init__(particles, link=link)
        if weights not in ("uniform", "evidence"):
            raise ValueError(f"weights must be 'uniform' or 'evidence', got {weights!r}")
        if prior_precision is not None and not 0 < prior_precision < float("inf"):
            raise ValueError(f"prior_precision must be positive, got {prior_precision}")
        if not callable(make_optimizer):
            raise TypeError(
                "make_optimizer must be a function of the parameters, such as lambda p: "
                f"torch.optim.SGD(p, lr=0.1), got {type(make_optimizer).__name__}"
            )
        self.make_optimizer, self.prior_precision = make_optimizer, prior_precision
        self.weighting = weights
        self.layers = find_layers(particles)
        check_memory(self.layers, particles)
        self._start = {name: t.detach().clone() for name, t in particles.tensors().items()}
        self._first_draw = particles.noise_counter.clone()
        self.alive = torch.ones(particles.n, dtype=torch.bool, device=particles.device)
        self._sums: TaskSums | None = None
        self._read: tuple[Ensemble, Tensor] | None = None
        self._begin_task()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.particles.n} particles, {self.tasks} tasks)"

    @property
    def tasks(self) -> int:
        """The number of finished tasks."""
        return 0 if self._sums is None else len(self._sums.tasks)

    @property
    def samples(self) -> int:
        """The number of samples of the finished tasks."""
        return 0 if self._sums is None else self._sums.samples

    @torch.no_grad()
    def _begin_task(self) -> None:
        """x <- x_0, with a new optimizer. If it cannot be made, nothing has changed."""
        tensors, draw = self.particles.tensors(), self.particles.noise_counter
        before = [(tensor, tensor.clone()) for tensor in (*tensors.values(), draw)]
        parameters = [p for p in self.particles.parameters() if p.requires_grad]
        try:
            for name, tensor in tensors.items():
                tensor.copy_(self._start[name])
            draw.copy_(self._first_draw)
            self.training = AveragingParticles(self.particles, self.make_optimizer(parameters))
        except BaseException:
            for tensor, value in before:
                tensor.copy_(value)
            raise
        for parameter in parameters:
            parameter.grad = None
        self.steps = self.training.steps
        self._looked = False  # whether `_reached` is known
        self._reached: Tensor | None = None  # output columns of the task's loss, see `_look`

    def step(
        self, closure: Closure | Sequence[Closure], *, penalty: Closure | None = None
    ) -> StepInfo:
        """Take one gradient step in the current task, as in the other filters."""
        closures = list(closure) if isinstance(closure, Sequence) else [closure]
        self._look(closures)
        return self.training.step(closures, penalty=penalty)

    def compile(
        self, loss_fn: Callable[..., Any], penalty: Callable[..., Tensor] | None = None
    ) -> Callable[..., StepInfo]:
        """`fast = pf.compile(loss_fn)`, then `info = fast(x, y)`, task after task."""
        recorded: list[Any] = [None, None]

        def fast(*batch: Tensor) -> StepInfo:
            if recorded[0] is not self.training:
                recorded[:] = self.training, self.training.compile(loss_fn, penalty)
            self._look([lambda: loss_fn(*batch)])
            return recorded[1](*batch)

        return fast

    def _look(self, closures: Sequence[Closure]) -> None:
        """Find the output columns that the task's loss depends on, at its first step."""
        if not self._looked and all(callable(closure) for closure in closures):
            self._reached, self._looked = reached_columns(self.particles, closures), True

    @torch.no_grad()
    def end_task(self, data: Data, *, loss: Losses | None = None) -> None:
        """Add the task: compute G_t and G_t W_t in one pass over its data, return to the start.

        `data`: a pair of tensors (x, y) or batches of such pairs; y is used by `loss` only.
        `loss(outputs [N, B, ...], y) -> [N]`, the negative log-likelihood *summed* over a batch,
        is needed for `weights="evidence"`. After an error nothing has changed.
        """
        if int(self.training.steps) == 0:
            raise ValueError("this task has not taken a step: train with step before end_task")
        if self.weighting == "evidence" and loss is None:
            raise ValueError(
                "weights='evidence' needs the loss of the task's data: end_task((x, y), loss=nll) "
                "with nll(outputs, y) -> [N], summed over the batch"
            )
        self.training.check(now=True)
        moments = task_moments(self.particles, self.layers, data, loss)
        alive = self.particles.shard.local(self.training.alive)
        task = task_sums(self.particles, self.layers, self._start, moments, self._reached, alive)
        sums = task if self._sums is None else self._sums.plus(task)
        alive = self._survivors(sums)
        self._begin_task()
        self._sums, self.alive, self._read = sums, alive, None

    def _survivors(self, sums: TaskSums | None) -> Tensor:
        """Who is alive after these tasks `[N]`; raise if no particle would be left."""
        alive = torch.ones_like(self.alive)
        if sums is not None:
            alive = self.particles.shard.gather(sums.scalars.value[:, 2]) == 0
        if not alive.any():
            raise FloatingPointError(
                "no particle has lived through every task: lower the learning rate or drop this one"
            )
        return alive

    @property
    def networks(self) -> Ensemble:
        """The networks that predict: x_0 before the first task, afterwards the product's mean."""
        return self._merge()[0]

    @torch.no_grad()
    def _merge(self) -> tuple[Ensemble, Tensor]:
        """The merged networks of this rank and their log Z; computed once after each change."""
        if self._read is None:
            merged = copy.deepcopy(self.particles)
            log_z = torch.zeros(merged.shard.count, dtype=torch.float64, device=merged.device)
            values = self._start
            if self._sums is not None:
                p_0, given = self.prior_precision, (self.particles, self.layers, self._start)
                values, log_z = merged_tensors(*given, self._sums, p_0)
            for name, tensor in merged.tensors().items():
                tensor.copy_(values[name])
                tensor.grad = None
            self._read = merged, log_z
        return self._read

    @property
    def particle_log_evidence(self) -> Tensor:
        """log Z `[N]`, float64; 0 with uniform weights, -inf for a particle that died in a task."""
        if self.weighting == "uniform":
            return torch.zeros(self.particles.n, dtype=torch.float64, device=self.particles.device)
        return self.particles.shard.gather(self._merge()[1]).masked_fill(~self.alive, -torch.inf)

    @property
    def raw_log_weights(self) -> Tensor:  # type: ignore[override]
        """Normalised log-weights `[N]`; a particle that died in a task has weight 0."""
        return normalize(self.particle_log_evidence.masked_fill(~self.alive, -torch.inf))[0]

    @property
    def log_evidence(self) -> Tensor:
        """The mean evidence of the particles; 0 with uniform weights."""
        return log_mean(self.particle_log_evidence)

    def check(self, now: bool = False) -> None:
        """Raise if no particle is left in the current task."""
        self.training.check(now)

    def __add__(self, other: PosteriorProduct) -> PosteriorProduct:
        """A filter with the finished tasks of both, and the settings of this one."""
        return self._combined(other, 1)

    def __sub__(self, other: PosteriorProduct) -> PosteriorProduct:
        """A filter with the finished tasks of this one that are not in `other`."""
        return self._combined(other, -1)

    def _combined(self, other: Any, sign: int) -> Any:
        if not isinstance(other, PosteriorProduct):
            return NotImplemented
        if self.weighting != other.weighting:
            raise ValueError(
                f"weights are {self.weighting!r} here and {other.weighting!r} there: filters to be "
                "added must weigh alike"
            )
        check_same_start(self._start, other._start)
        if self.layers != other.layers:
            raise ValueError("these filters train different parameters: freeze the same ones")
        sums = self._sums
        if other._sums is not None:
            state = other._sums.state_dict(lambda tensor: tensor.to(self.particles.device))
            theirs = TaskSums.from_state(state, self.layers, lambda tensor: tensor)
            sums = (sums or theirs.plus(theirs, -1)).plus(theirs, sign)
        both = copy.copy(self)
        both.particles = copy.deepcopy(self.particles)
        both._sums, both._read = sums if sums is not None and sums.tasks else None, None
        both.alive = self._survivors(both._sums)
        both._begin_task()
        return both

    def state_dict(self) -> dict[str, object]:
        """Start, sums, and the current task; see `ol.save`."""
        shard = self.particles.shard
        return {
            "kind": type(self).__name__,
            "start": shard.collect_all(copied(self._start)),
            "first_draw": self._first_draw.clone(),
            "training": self.training.state_dict(),
            "looked": self._looked,
            "reached": None if self._reached is None else self._reached.clone(),
            "sums": None if self._sums is None else self._sums.state_dict(shard.collect),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Raise before any change if it is of another filter or model."""
        name, kind = type(self).__name__, state.get("kind")
        if kind != name:
            raise ValueError(f"this state is of a {kind}, not of a {name}")
        missing = {"start", "first_draw", "training", "looked", "reached", "sums"} - state.keys()
        if missing:
            raise ValueError(f"this is not the state of a {name}: it has no {min(missing)!r}")
        shard, device = self.particles.shard, self.particles.device
        sums, reached = state["sums"], state["reached"]
        if sums is not None:
            sums = TaskSums.from_state(sums, self.layers, lambda t: shard.local(t).to(device))
            if self.weighting == "evidence" and not sums.scalars.value[:, 0].any():
                raise ValueError(
                    "this state has no losses, which weights='evidence' needs: load it into a "
                    "filter with weights='uniform', or train with end_task(data, loss=nll)"
                )
        start = {k: shard.local(t).to(device, copy=True) for k, t in state["start"].items()}
        shapes = {name: tensor.shape for name, tensor in self._start.items()}
        check_same_shapes(shapes, start, "this state is of another model")
        alive = self._survivors(sums)
        self.training.load_state_dict(state["training"])  # may still raise
        self._start, self._first_draw = start, state["first_draw"].to(device, copy=True)
        self._looked = bool(state["looked"])
        self._reached = None if reached is None else reached.to(device)
        self._sums, self.alive, self._read = sums, alive, None
