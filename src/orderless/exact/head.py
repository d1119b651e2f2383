"""The exact head: features are frozen, and the linear head on top of them is integrated out.

A network is a feature map x_i (a particle, drawn once and never moved) and a linear head W. Given
the map, the posterior of W under squared error is Gaussian and a function of sums over the data:

    G_i = sum_t phi_i(t) phi_i(t)^T        C_i = sum_t phi_i(t) y(t)^T
    W | x_i ~ N((A_i + lambda I)^-1 B_i, (A_i + lambda I)^-1 / beta)
    p(y | x_i) = integral of p(y | W, x_i) p(W) dW

with A, B the sums of centred features, computed from the same sums. Prior precision and noise
variance are not part of the sums: they are chosen when the head predicts, see `ridge.py` and
`solution.py`. Sums have no order, and here they have no rounding either (see `sums.py`), so the
result is the same *to the bit* for any order of tasks, batches or single samples, any batching and
any division among machines. Data can be removed again, heads added and subtracted: everything is

    sums  <-  sums + those of other data,    or    sums - those of other data.

With one map and a pre-trained backbone this is analytic continual learning: ACIL (Zhuang et al.,
2022), RanPAC (McDonnell et al., 2023), and, up to the scaling of its discriminants, streaming LDA
(Hayes and Kanan, 2020). New are the *set* of maps with exact evidence, the predictive variance and
the mergeable exact sums.

Memory: 16 N M^2 bytes (sums and, once read, factors), independent of the number of samples; 24 if
sums need a second word, which happens after millions of samples for ReLU features of about unit
size. An update needs another 16 N M^2 while it runs. Kept samples add N M / 8 bytes per sample.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..features.exact import check_limit, check_whole
from ..filters.base import Predictor
from ..filters.weights import log_mean
from .grid import (
    LARGEST_LABEL,
    GridFeatures,
    as_ensemble,
    check_tensor,
    checked,
    in_plain_mode,
    sums_of,
)
from .ridge import HeadPosterior
from .solution import (
    ExportedHead,
    Predictive,
    Prior,
    Solution,
    by_label,
    check_choice,
    checked_prior,
    read,
    solve,
)
from .sums import Basis, Column, HeadSums, tasks_and_labels, whole

_LOCK = threading.Lock()  # of all heads, held while one takes over new sums
_READ_OPTIONS = ("weighting", "class_prior", "prior_precision", "noise_variance")


class ExactHead(Predictor):
    """A linear head on frozen features: `update`, `forget`, `a + b`, `a - b`, exact to the bit.

    With centred features z of a map, their mean variance v and targets y, the head W is Gaussian
    with prior precision alpha, noise variance 1 / beta and lambda = alpha v / beta:

        A = sum z z^T    B = sum z y^T    W ~ N((A + lambda I)^-1 B, (A + lambda I)^-1 / beta)

    >>> x, y = torch.eye(4).repeat(5, 1), torch.tensor([0, 0, 1, 1]).repeat(5)
    >>> monday, tuesday = ol.ExactHead("linear"), ol.ExactHead("linear")
    >>> monday.update(x[:12], y[:12])
    >>> tuesday.update(x[12:], y[12:])
    >>> both = tuesday + monday
    >>> both.predict(x[:4]).argmax(1).tolist()
    [0, 0, 1, 1]
    >>> both.forget(x[12:], y[12:])
    >>> torch.equal(both.predict(x), monday.predict(x))
    True

    Saved with the sums, and compared when a state is loaded or heads are added: the maps,
    `feature_limit`, `bits`, `block_size` (for maps that are not `exact`), `target_limit` (None for
    classes), `calibration`, `ledger`. Not saved, because they matter only in predictions, and may
    be set at any time: `weighting`, `prior_precision`, `noise_variance`, `class_prior`. `classes`
    is the caller's, too.

    Args:
        features: one module with outputs `[B, M]` (N = 1): random features from
            `orderless.features`, a frozen or pre-trained backbone; an `ol.Ensemble` of such maps;
            or `"linear"`: the inputs themselves, such as embeddings, flattened: scale columns of
            different units yourself. Maps are copied and run in evaluation mode.
        classes: the number of classes if known; other labels are then refused, and predictions
            before the first update are uniform. Otherwise the first sample of a class adds its
            column.
        targets: `"classes"` (integer labels) or `"values"` (floats `[B]` or `[B, K]`).
        weights: `"uniform"`: the plain mean of the maps, usually the most accurate; `"evidence"`:
            w_i ∝ p(data | map i), the Bayesian choice, which on large data gives one map all the
            weight. The attribute is `weighting`.
        prior_precision, noise_variance: fix both, the precision for features of mean variance 1.
        class_prior: the shares of the classes assumed when predicting: None (those of the data),
            `"uniform"`, or a share per label; see the attribute.
        calibration: keep one sample in `calibration`, chosen by its hash, to choose the ridge and
            the temperature of probabilities (see `solution.py`); 2 N M bytes each. 0: keep
            none; the ridge maximises the evidence, and probabilities are less well calibrated.
        feature_limit, target_limit: powers of two. Features beyond the limit are clipped, targets
            beyond it refused. A warning suggests a better limit if much is lost by clipping or
            rounding.
        bits: the grid is that of multiples of limit / 2^bits; at most 16.
        block_size: rows per block for maps that are not `exact`, see `grid.py`. Updates with
            single samples are several times faster with `block_size=1`.
        ledger: keep 16 bytes per sample, a keyed hash with a count, and refuse to forget a sample
            that is not in: the sums alone notice that of large batches only. See `drop_ledger`.

    Updates may come from several threads: each is counted. A head in use is not to be moved.
    """

    plain_state = ("basis", "sums")
    sums: HeadSums | None  # None without data; never changed in place
    _solution: Solution | None

    def __init__(
        self,
        features: Ensemble | nn.Module | str,
        *,
        classes: int | None = None,
        targets: str = "classes",
        weights: str = "uniform",
        prior_precision: float | None = None,
        noise_variance: float | None = None,
        class_prior: Prior = None,
        calibration: int = 16,
        feature_limit: float = 16.0,
        target_limit: float = 16.0,
        bits: int = 16,
        block_size: int = 256,
        ledger: bool = False,
    ) -> None:
        check_choice("targets", targets, ("classes", "values"))
        check_choice("ledger", ledger, (True, False))
        if (prior_precision is None) != (noise_variance is None):
            raise ValueError("give both prior_precision and noise_variance, or neither")
        of_classes = targets == "classes"
        # a function: with one class known so far its probability is 1, which "softmax" refuses
        softmax = partial(torch.softmax, dim=-1)
        super().__init__(as_ensemble(features), link=softmax if of_classes else "identity")
        self.grid = GridFeatures(self.particles, feature_limit, bits, block_size)
        self.basis = Basis(
            self.grid.fingerprint,
            self.grid.limit,
            self.grid.bits,
            target_limit=None if of_classes else check_limit(target_limit, "target_limit"),
            calibration=check_whole("calibration", calibration, 0) if of_classes else 0,
            ledger=ledger,
        )
        if classes is not None:
            classes = check_whole("classes", classes, 1, LARGEST_LABEL)
        self.classes = classes
        self.weighting = weights
        self.prior_precision = prior_precision
        self.noise_variance = noise_variance
        self.class_prior = class_prior
        self.told: set[str] = set()  # what was warned of
        # of an estimator, not saved: what inputs and labels mean, and labels `[C]` as numbers that
        # do not change when it meets new ones, for a ledger
        self.meaning: dict[str, Any] = {}
        self.label_names: Tensor | None = None
        self.sums = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, checked; the solved heads are dropped here if they depend on it."""
        if name == "weighting":
            check_choice("weights", value, ("uniform", "evidence"))
        elif name == "class_prior":
            value = checked_prior(value) if self.basis.classes else None
        elif name in _READ_OPTIONS and value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
        super().__setattr__(name, value)
        if name == "sums" or name in _READ_OPTIONS:
            super().__setattr__("_solution", None)

    def __repr__(self) -> str:
        features = "no" if self.sums is None else self.sums.features
        return (
            f"ExactHead({self.particles.n} maps, {features} features, {len(self.columns)} columns, "
            f"{self.samples} samples, weights={self.weighting!r}, device='{self.grid.device}')"
        )

    @property
    def samples(self) -> int | float:
        """The number of samples: the sum of their weights."""
        return 0 if self.sums is None else whole(self.sums.samples)

    @property
    def columns(self) -> list[Column]:
        """The head's columns (task, label) in ascending order; task is -1 if none was given."""
        numbers = torch.zeros(0) if self.sums is None else self.sums.columns
        tasks, labels = tasks_and_labels(numbers)
        return list(zip(tasks.tolist(), labels.tolist(), strict=True))

    # ---------------------------------------------------------------------- data

    @in_plain_mode
    def update(
        self, x: Tensor, y: Tensor, task: int | None = None, sample_weight: Any = None
    ) -> None:
        """Add samples x `[B, ...]` with targets y `[B]`. After an error nothing has changed.

        With `task` the head has a column per (task, label), otherwise one per label. A sample of
        weight 3 counts as three; weights `[B]` are multiples of 1/16 up to 16.
        """
        self._change(x, y, task, sample_weight, 1)

    @in_plain_mode
    def forget(
        self, x: Tensor, y: Tensor, task: int | None = None, sample_weight: Any = None
    ) -> None:
        """Remove samples, as if they had never been added. After an error nothing has changed.

        They must be the same as in `update`, weights included, in any order and batches. Samples
        that were never added are refused if the sums show it: if a count or a sum of squares would
        fall below 0, or if sums would remain without samples. With a ledger all of them are.
        """
        self._change(x, y, task, sample_weight, -1)

    def _change(self, x: Tensor, y: Tensor, task: int | None, weight: Any, sign: int) -> None:
        x, y, weights = checked(x, y, weight, self.grid.device)
        if not len(y):
            return
        part, remarks = sums_of(self, x, y, task, weights)
        for name in remarks.keys() - self.told:
            self.told.add(name)
            warnings.warn(remarks[name], stacklevel=4)
        with _LOCK:
            self.sums = self._total(part, sign)

    def _total(self, part: HeadSums | None, sign: int) -> HeadSums | None:
        """Own sums plus or minus others, after every check; None if no data are left."""
        if part is None:
            return self.sums
        if self.sums is not None:
            total = self.sums.plus(part, sign)
        elif sign > 0:
            total = part.map(lambda tensor: tensor.to(self.grid.device))
        else:
            raise ValueError("nothing can be taken from a head without data")
        self._check_labels(total)
        return total if total.samples else None

    def _check_labels(self, sums: HeadSums) -> None:
        """Refuse labels beyond `classes`."""
        labels = tasks_and_labels(sums.columns)[1]
        if self.basis.classes and self.classes is not None and (labels >= self.classes).any():
            largest = int(labels.max())
            raise ValueError(f"labels must lie between 0 and {self.classes - 1}, got {largest}")

    def drop_ledger(self) -> None:
        """Forget which samples are in; the sums stay. To be done before a head is published."""
        with _LOCK:
            self.basis = replace(self.basis, ledger=False)
            if self.sums is not None:
                left = {name: own for name, own in self.sums.counted.items() if name != "ledger"}
                self.sums = replace(self.sums, basis=self.basis, counted=left)

    # ---------------------------------------------------------------------- several heads

    @in_plain_mode
    def holding(self, sums: HeadSums | None) -> Self:
        """A head with these sums and the same settings; it shares the maps."""
        result = copy.copy(self)
        result.sums = None
        result.sums = result._total(sums, 1)
        return result

    def __add__(self, other: ExactHead) -> Self:
        """A head with the data of both and the settings of this one. Neither changes."""
        return self._with(other, 1)

    def __sub__(self, other: ExactHead) -> Self:
        """A head with the data of this one that are not in the other. Neither changes."""
        return self._with(other, -1)

    def __radd__(self, other: Any) -> Self:
        """0 + a, for `sum`."""
        if not isinstance(other, int) or other != 0:
            return NotImplemented
        return self.holding(self.sums)

    @in_plain_mode
    def _with(self, other: ExactHead, sign: int) -> Self:
        if not isinstance(other, ExactHead):
            return NotImplemented
        for name in self.meaning | other.meaning:
            ours = self.meaning.get(name)
            theirs = other.meaning.get(name)
            if ours != theirs:
                raise ValueError(
                    f"{name} differs, {str(ours)[:80]} here and {str(theirs)[:80]} there: add the "
                    "estimators that these heads belong to, which align labels, and give both the "
                    "same random_state and scale instead of taking it from the data of each"
                )
        self.basis.check_same(other.basis)
        return self.holding(self._total(other.sums, sign))

    def relabelled(self, labels: list[int], classes: int | None) -> Self:
        """The same data with label i renamed to `labels[i]` (ascending), out of `classes`."""
        if self.basis.ledger and self.label_names is None:
            raise ValueError("the hashes of a ledger hold labels: drop_ledger() before renaming")
        result = self.holding(None)
        result.classes = classes
        result.sums = None if self.sums is None else self.sums.relabelled(labels)
        return result

    def to(self, device: torch.device | str) -> Self:
        """Move maps and sums, in place. Heads that share the maps keep theirs where they are."""
        with _LOCK:
            self.particles = copy.deepcopy(self.particles).to(device)
            self.grid = self.grid.moved(self.particles)
            self.basis = replace(self.basis, fingerprint=self.grid.fingerprint)
            if self.sums is not None:
                moved = self.sums.map(lambda tensor: tensor.to(device))
                self.sums = replace(moved, basis=self.basis)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Maps and sums; see `ol.save`."""
        return {
            "kind": type(self).__name__,
            "particles": {name: t.clone() for name, t in self.particles.state_dict().items()},
            "basis": dict(vars(self.basis)),
            "sums": None if self.sums is None else self.sums.state_dict(),
        }

    @in_plain_mode
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load maps and sums. Raise before any change if they are of another kind or grid."""
        self.check_state(state)
        particles = copy.deepcopy(self.particles)
        particles.load_state_dict(state["particles"])
        grid = GridFeatures(particles, self.grid.limit, self.grid.bits, self.grid.block_size)
        basis = replace(self.basis, fingerprint=grid.fingerprint)
        basis.check_same(Basis(**state["basis"]))
        sums = state["sums"]
        if sums is not None:
            sums = HeadSums.from_state(sums, basis, grid.device)
            self._check_labels(sums)
        with _LOCK:
            self.particles = particles
            self.grid = grid
            self.basis = basis
            self.sums = sums

    # ---------------------------------------------------------------------- reading

    @in_plain_mode
    def solution(self) -> Solution:
        """Posteriors, weights and temperature, computed once after each change."""
        sums = self.sums
        solution = self._solution
        if solution is None:
            solution = solve(self, sums)
            with _LOCK:
                if self.sums is sums:  # no thread has changed it meanwhile
                    self._solution = solution
        return solution

    @property
    def heads(self) -> list[HeadPosterior]:
        """The head of every map."""
        return self.solution().heads

    @property
    def particle_log_evidence(self) -> Tensor:
        """log p(data | map i): `[N]`, float64; 0 without data."""
        return self.solution().evidence

    @property
    def log_evidence(self) -> Tensor:
        """log p(data) under a uniform prior over the maps: the mean evidence."""
        return log_mean(self.particle_log_evidence)

    @property
    def raw_log_weights(self) -> Tensor:  # type: ignore[override]
        """Normalised log-weights `[N]`."""
        return self.solution().log_weights

    @property
    def alive(self) -> Tensor:  # type: ignore[override]
        """Feature maps do not die: `[N]`, all True."""
        return torch.ones(self.particles.n, dtype=torch.bool, device=self.grid.device)

    @in_plain_mode
    def outputs(self, x: Tensor, *, task: int | None = None) -> Tensor:  # type: ignore[override]
        """Every map's calibrated logits `[N, B, C]` (for values, its means `[N, B, K]`).

        With `task`, only that task's columns are used (task-incremental); otherwise the best score
        over all tasks is a label's. A class without samples has logit -inf; an unknown task, all
        zeros.
        """
        check_tensor("x", x)
        solution = self.solution()  # once: another thread may change the head meanwhile
        if not self.basis.classes:
            return read(solution, self.grid, x)[0]
        tasks, labels = tasks_and_labels(solution.columns)
        count = self.classes or max(labels.tolist(), default=-1) + 1
        if count == 0:
            raise ValueError("nothing to predict yet: update first, or say how many classes exist")
        chosen = torch.ones_like(tasks, dtype=torch.bool)
        if task is not None:
            chosen = (tasks == task) | (tasks == -1)
        if not chosen.any():
            shape = self.particles.n, len(x), count
            return torch.zeros(shape, dtype=torch.float64, device=self.grid.device)
        means, variances = read(solution, self.grid, x)
        # a tensor: a number divided by a tensor is rounded twice
        factor = means.new_tensor(solution.sharpness)
        scores = means[..., chosen] * (factor / variances.sqrt()).unsqueeze(2)
        return by_label(scores, labels[chosen], count)

    @in_plain_mode
    def predictive(self, x: Tensor) -> Predictive:
        """Mean and variance of the weighted mixture of Gaussians per head column."""
        check_tensor("x", x)
        means, variances = read(self.solution(), self.grid, x)
        weights = self.weights
        mean = self.average(means, weights)
        spread = variances.unsqueeze(2) + (means - mean).square()
        return Predictive(mean, self.average(spread, weights))

    def export(self, *, probabilities: bool = False) -> ExportedHead:
        """Maps and heads as one `nn.Module` that computes `predictive(x).mean`, or `predict(x)`,
        equal up to rounding.

        Later updates do not change it. `probabilities` need the inverse factors too, 8 N M^2 bytes.
        """
        return ExportedHead(self, probabilities)
