"""The product of task posteriors: RegMean with a prior, as a continual learner.

p(x | D_1, ..., D_T) is proportional to p_0(x) times a product of likelihoods, and products commute.
So every task starts from the *same* networks x_0, trains on its own data alone, and adds to two
sums per layer: with a the layer's inputs on the task's data (including a constant 1) and W_t its
trained weights,

    G_t = sum_{x in D_t} a(x) a(x)^T    and    G_t W_t.

Each task's posterior of the layer is approximated by N(W_t, (G_t x I)^-1), and the prior is
N(A, I / p_0). Predictions use the mean of their product:

    W = (p_0 I + sum_t G_t)^-1 (p_0 A + sum_t G_t W_t)

The anchor A is W_0, or W_0 plus a third sum, that of the changes W_t - W_0: where the data of all
tasks says little about a direction, the networks' own movements are added up.

Exact: for one Linear layer under squared error, trained to convergence, with A = W_0, this is the
ridge solution on all data; and the sums have no rounding (`merging.py`), so that equal (W_t, G_t)
give equal bits in any order of the tasks. Approximate: each layer is merged by itself, as if the
others had not changed; a task's precision is that of squared error.

Relatives: RegMean (Jin et al., 2023) merges language models by the same formula without a prior;
Fisher merging (Matena and Raffel, 2022) has a diagonal in place of G_t; consensus Monte Carlo
(Scott et al., 2016) multiplies posteriors of shards. See docs/methods/product.md.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..consolidation.base import Data, is_pair, pairs
from ..ensemble import Ensemble
from ..ensemble.stacking import check_same_shapes
from ..filters.base import Closure, Link, Predictor, StepInfo, copied
from ..filters.gradient import AveragingParticles
from .merging import Prior, TaskSums, load_merged, load_tensors, merged_layers, task_sums


class PosteriorProduct(Predictor):
    """Train tasks from the same start with `step`, end them with `end_task`, predict at any time.

    Args:
        particles: the networks with which every task starts. Parameters that do not require a
            gradient are not changed.
        make_optimizer: called with the trained parameters once per task.
        prior_precision: p_0; None: a share of the mean diagonal of sum_t G_t, layer by layer: 1e-3
            with the anchor "start", 0.1 with "sum".
        anchor: to what the prior pulls: `"start"`, or `"sum"`, the start plus the changes of all
            tasks. "sum" is better where tasks are alike, the more so the more tasks there are, and
            with convolutions; where they differ it costs up to 1.5 points (lab/studies/merging.py).
        link: from outputs to predictions: `"softmax"`, `"sigmoid"` for one output that is a logit,
            `"identity"` for values, or a function.

    `predict` and `outputs` use the merged `networks` of the finished tasks (x_0 before the first),
    each with the same weight. `a + b` has the finished tasks of both, `a - b` those of a without
    those of b.

    The order of tasks has no effect if training a task is reproducible: the loss must not depend on
    earlier tasks, nor draw from torch's own generator (dropout does not).

    Memory: 16 bytes per entry of G_t, for every layer and particle, independent of the number of
    tasks; `end_task` needs 40 more temporarily.

    >>> import torch, orderless as ol
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 2), n=3)
    >>> pf = ol.PosteriorProduct(particles, lambda p: torch.optim.SGD(p, lr=0.1))
    >>> loss = ol.per_particle(torch.nn.functional.cross_entropy)
    >>> for x in torch.randn(2, 16, 2):  # two tasks
    ...     y = (x[:, 0] > 0).long()
    ...     info = pf.step(lambda: loss(particles(x), y))
    ...     pf.end_task((x, y))
    >>> pf, pf.predict(x).shape
    (PosteriorProduct(3 particles, 2 tasks), torch.Size([16, 2]))
    """

    plain_state = ("seed", "start", "first_draw", "sums")

    def __init__(
        self,
        particles: Ensemble,
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        prior_precision: float | None = None,
        anchor: str = "start",
        link: Link = "softmax",
    ) -> None:
        super().__init__(particles, link=link)
        self.prior = Prior(prior_precision, anchor)
        if not callable(make_optimizer):
            raise TypeError(
                "make_optimizer must be a function of the parameters, such as lambda p: "
                f"torch.optim.SGD(p, lr=0.1), got {type(make_optimizer).__name__}"
            )
        self.make_optimizer = make_optimizer
        self.layers = merged_layers(particles)
        self._start = {name: t.detach().clone() for name, t in particles.tensors().items()}
        self._first_draw = particles.noise_counter.clone()
        self._sums = TaskSums.nothing(particles)
        self._merged: Ensemble | None = None
        self._begin_task()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.particles.n} particles, {self.tasks} tasks)"

    @property
    def tasks(self) -> int:
        """The number of finished tasks."""
        return len(self._sums.tasks)

    @property
    def samples(self) -> int:
        """The number of samples of the finished tasks."""
        return int(self._sums.value("samples"))

    @property
    def steps(self) -> Tensor:
        """The number of steps in the current task."""
        return self.task_filter.steps

    @property
    def alive(self) -> Tensor:  # type: ignore[override]
        """Which particles have lived through every finished task `[N]`."""
        return self._sums.value("deaths") == 0

    @property
    def raw_log_weights(self) -> Tensor:  # type: ignore[override]
        """Log-weights `[N]`: equal, and 0 for a particle that died in a task."""
        alive = self.alive
        return torch.where(alive, -alive.sum().double().log(), -torch.inf)

    @property
    def log_evidence(self) -> Tensor:
        """0: nothing is weighed, so nothing is evidence."""
        return torch.zeros((), dtype=torch.float64, device=self.particles.device)

    @torch.no_grad()
    def _begin_task(self) -> None:
        """x <- x_0, with a new optimizer. If it cannot be made, nothing has changed."""
        before = copied(self.particles.tensors())
        draws = self.particles.noise_counter.clone()
        parameters = [p for p in self.particles.parameters() if p.requires_grad]
        try:
            load_tensors(self.particles, self._start)
            self.particles.noise_counter.copy_(self._first_draw)
            self.task_filter = AveragingParticles(self.particles, self.make_optimizer(parameters))
        except BaseException:
            load_tensors(self.particles, before)
            self.particles.noise_counter.copy_(draws)
            raise

    def step(
        self, closure: Closure | Sequence[Closure], *, penalty: Closure | None = None
    ) -> StepInfo:
        """Take one gradient step in the current task, as in the other filters."""
        return self.task_filter.step(closure, penalty=penalty)

    def compile(
        self, loss_fn: Callable[..., Any], penalty: Callable[..., Tensor] | None = None
    ) -> Callable[..., StepInfo]:
        """`fast = pf.compile(loss_fn)`, then `info = fast(x, y)`, task after task."""
        recorded: dict[AveragingParticles, Callable[..., StepInfo]] = {}

        def fast(*batch: Tensor) -> StepInfo:
            if self.task_filter not in recorded:
                recorded.clear()  # another task has another optimizer
                recorded[self.task_filter] = self.task_filter.compile(loss_fn, penalty)
            return recorded[self.task_filter](*batch)

        return fast

    @torch.no_grad()
    def end_task(self, data: Data, active: Tensor | Sequence[int] | None = None) -> None:
        """Add the task: compute G_t and G_t W_t in one pass over its data, return to the start.

        `data`: a pair of tensors (x, y) or batches of such pairs; y adds nothing. `active`: the
        output columns that the task's loss uses (task-incremental: its own classes); the others
        take nothing from this task. None: all. After an error nothing has changed.
        """
        if int(self.steps) == 0:
            raise ValueError("this task has not taken a step: train with step before end_task")
        self.check(now=True)
        if self.link == "softmax":
            labelled = _labelled(data)
            data = next(labelled) if is_pair(data) else labelled
        alive = self.task_filter.alive
        task = task_sums(self.particles, self.layers, self._start, data, active, alive)
        sums = self._sums.plus(task).checked()
        self._begin_task()
        self._sums = sums
        self._merged = None

    @property
    def networks(self) -> Ensemble:
        """The networks that predict: x_0 before the first task, afterwards the product's mean."""
        if self._merged is None:  # computed once after each change
            self._merged = copy.deepcopy(self.particles)
            load_tensors(self._merged, self._start)
            if self.tasks:
                load_merged(self._merged, self.layers, self._sums, self.prior)
        return self._merged

    def predict(self, *args: Any, **options: Any) -> Any:
        """The mean prediction of the merged networks, e.g. `[B, C]`; see `Predictor.predict`."""
        if int(self.steps) > 0:
            warnings.warn(
                f"the {int(self.steps)} steps since the last end_task are not in this prediction: "
                "the product predicts from finished tasks, end this one with end_task(data)",
                stacklevel=2,
            )
        return super().predict(*args, **options)

    def check(self, now: bool = False) -> None:
        """Raise if no particle is left in the current task."""
        self.task_filter.check(now)

    def __add__(self, other: PosteriorProduct) -> PosteriorProduct:
        """A filter with the finished tasks of both, and the settings of this one."""
        return self._combined(other, 1)

    def __sub__(self, other: PosteriorProduct) -> PosteriorProduct:
        """A filter with the finished tasks of this one that are not in `other`."""
        return self._combined(other, -1)

    def _combined(self, other: Any, sign: int) -> Any:
        if not isinstance(other, PosteriorProduct):
            return NotImplemented
        self._check_same_start(other)
        theirs = other._sums.to(self.particles.device)
        both = copy.copy(self)
        both.particles = copy.deepcopy(self.particles)
        both._sums = self._sums.plus(theirs, sign).checked()
        both._merged = None
        both._begin_task()
        return both

    def _check_same_start(self, other: PosteriorProduct) -> None:
        """Raise `ValueError` if the other product starts from other networks."""
        shapes = {name: tensor.shape for name, tensor in self._start.items()}
        check_same_shapes(shapes, other._start, "these filters are of different networks")
        if self.layers != other.layers:
            raise ValueError("these filters train different parameters: freeze the same ones")
        for name, ours in self._start.items():
            if not torch.equal(ours, other._start[name].to(ours.device)):
                raise ValueError(
                    f"these filters have different starts: {name!r} differs; only tasks that "
                    "started from the same networks can be multiplied, build both ensembles from "
                    "the same seed"
                )

    def to(self, *args: Any, **options: Any) -> Any:
        """Move the networks and all sums to a device, in place."""
        self.task_filter.to(*args, **options)
        device = self.particles.device
        self._start = {name: tensor.to(device) for name, tensor in self._start.items()}
        self._first_draw = self._first_draw.to(device)
        self._sums = self._sums.to(device)
        self._merged = None
        return self

    def state_dict(self) -> dict[str, object]:
        """The current task's state, start and sums; see `ol.save`."""
        return {
            **self.task_filter.state_dict(),
            "kind": type(self).__name__,
            "start": copied(self._start),
            "first_draw": self._first_draw.clone(),
            "sums": self._sums.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Raise before any change if it is of another filter or model."""
        self.check_state(state)
        device = self.particles.device
        sums = TaskSums.from_state(state["sums"], device).checked()
        start = {name: tensor.to(device, copy=True) for name, tensor in state["start"].items()}
        shapes = {name: tensor.shape for name, tensor in self._start.items()}
        check_same_shapes(shapes, start, "this state is of another model")
        of_task = {**state, "kind": type(self.task_filter).__name__}
        self.task_filter.load_state_dict(of_task)  # may still raise
        self._start = start
        self._first_draw = state["first_draw"].to(device, copy=True)
        self._sums = sums
        self._merged = None


def _labelled(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs of the data; raise if targets are no labels, as the link softmax needs them."""
    for x, y in pairs(data):
        if y.is_floating_point():
            raise ValueError(
                f"the targets are {y.dtype}, but link='softmax' predicts classes: make the product "
                "with link='identity' for a regression, or give labels as whole numbers"
            )
        yield x, y
