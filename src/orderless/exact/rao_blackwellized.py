"""The exact filter: a particle is a feature map, and its linear head is integrated out.

A network is a feature map x_i (the particle, drawn once and never moved) and a linear head W on top
of it. Given the map, the posterior of W under squared error is Gaussian and a function of sums over
the data (Rao-Blackwellisation: the head is integrated out, not sampled):

    G_i = sum_t phi_i(t) phi_i(t)^T        C_i = sum_t phi_i(t) y(t)^T
    W | x_i ~ N((A_i + lambda I)^-1 B_i, (A_i + lambda I)^-1 / beta)
    w_i ∝ p(y | x_i) = integral of p(y | W, x_i) p(W) dW

with A, B the sums of centred features, computed from the same sums. Prior precision and noise
variance are not part of the sums: they are chosen on read, see `evidence.py` and
`leave_one_out.py`. Sums have no order, and here they have no rounding either (see `statistics.py`),
so the result is the same *to the bit* for any order of tasks, batches or single samples, any
batching and any sharding. Data can be removed again, and data sets added and subtracted: see
`algebra.py`.

With one particle and a pre-trained backbone as its feature map this is analytic continual learning:
ACIL (Zhuang et al., 2022), RanPAC (McDonnell et al., 2023), and, up to the scaling of its
discriminants, streaming LDA (Hayes and Kanan, 2020). New are the weighted *set* of maps with exact
evidence, the predictive variance and the mergeable exact sums.

Memory: 16 N M^2 bytes (sums and, once read, factors), independent of the number of samples; 20 if
sums need a second word, which happens after millions of samples for ReLU features of about unit
size. Kept samples add N M / 8 bytes per sample by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..ensemble import Ensemble
from ..filters.weights import log_mean, normalize
from .algebra import DataAlgebra, check_tensor, in_plain_mode
from .evidence import HeadPosterior, NormalEquations, solve_head
from .export import ExportedFilter
from .leave_one_out import DEFAULT_SHARPNESS, HeldOut
from .quantize import GridFeatures, as_ensemble
from .statistics import HeadStatistics
from .targets import Classes, Column, Values, by_label, label_table

Prior = str | Sequence[float] | None


class Predictive(NamedTuple):
    """Mean and variance of the mixture's prediction per head column, `[B, K]` each."""

    mean: Tensor
    variance: Tensor


class RaoBlackwellizedFilter(DataAlgebra):
    """Particles are fixed feature maps; `update` adds data, and everything else is done on read.

    Args:
        features: an `ol.Ensemble` of feature maps (`[N, B, M]`), or one module with outputs
            `[B, M]` (N = 1): random features from `orderless.features`, a frozen or pre-trained
            backbone. Always run in evaluation mode.
        weights: `"evidence"`: w_i ∝ p(data | map i), the Bayesian choice, which on large data gives
            one map all the weight; `"tempered"`: the same, tempered to an ESS of `min_ess` (N/2
            unless given); `"uniform"`: the plain mean, usually the most accurate.
        targets: `"classes"` (integer labels) or `"values"` (floats `[B]` or `[B, K]`).
        classes: the number of classes if known; other labels are then refused, and predictions
            before the first update are uniform. Otherwise the first sample of a class adds its
            column.
        across_tasks: how the scores of one label from several tasks combine: `"max"` or `"probs"`
            (sum of probabilities). Summed raw outputs would equal one head without tasks.
        standardize: centre features and give the head an intercept. All features have one scale,
            their mean variance: scale raw columns of different units yourself. `False` uses
            features as they are, without an intercept.
        prior_precision, noise_variance: fix both, the precision for features of mean variance 1.
        class_prior: the shares of the classes assumed on read: None (those of the data),
            `"uniform"`, or a share per label; see the attribute.
        calibration: keep one sample in `calibration`, chosen by its hash, to choose the ridge and
            the temperature of probabilities (see `leave_one_out.py`); 2 N M bytes each. 0: keep
            none; the ridge maximises the evidence, and probabilities are less well calibrated.
        feature_limit, target_limit: powers of two. Features beyond the limit are clipped (`clipped`
            counts them), targets beyond it refused; the grid is limit / 2^bits. A warning suggests
            a better limit if much is lost by clipping or rounding.
        bits: of the grid; samples of a total weight of 2^(76 - 2 * bits) can be summed exactly.
        block_size: rows per block for maps that are not `exact`, see `quantize.py`. Updates with
            single samples are several times faster with `block_size=1`.
    """

    def __init__(
        self,
        features: Ensemble | nn.Module,
        *,
        weights: str = "evidence",
        min_ess: float | None = None,
        targets: str = "classes",
        classes: int | None = None,
        across_tasks: str = "max",
        standardize: bool = True,
        prior_precision: float | None = None,
        noise_variance: float | None = None,
        class_prior: Prior = None,
        calibration: int = 16,
        feature_limit: float = 16.0,
        target_limit: float = 16.0,
        bits: int = 16,
        block_size: int = 256,
    ) -> None:
        _choice("weights", weights, ("evidence", "tempered", "uniform"))
        _choice("targets", targets, ("classes", "values"))
        _choice("across_tasks", across_tasks, ("max", "probs"))
        if min_ess is not None and weights != "tempered":
            raise ValueError(f"min_ess belongs to weights='tempered', got weights={weights!r}")
        if (prior_precision is None) != (noise_variance is None):
            raise ValueError("give both prior_precision and noise_variance, or neither")
        for value in (prior_precision, noise_variance):
            if value is not None and not value > 0:
                raise ValueError(f"a prior precision or noise variance is positive, got {value}")
        if calibration < 0:
            raise ValueError(f"calibration must not be negative, got {calibration}")
        grid = GridFeatures(as_ensemble(features), feature_limit, bits, block_size)
        if weights == "tempered" and min_ess is None:
            min_ess = max(1.0, grid.particles.n / 2)
        kind = Classes(classes) if targets == "classes" else Values(target_limit, bits)
        super().__init__(grid, kind, calibration, min_ess)
        self._solved: list[HeadPosterior] | None
        self._sharpness: float | None
        self.weighting, self.across_tasks, self.standardize = weights, across_tasks, standardize
        self.prior_precision, self.noise_variance = prior_precision, noise_variance
        self.class_prior = class_prior

    def __repr__(self) -> str:
        features = "no" if self.statistics is None else str(self.statistics.features)
        maps = "1 map" if self.particles.n == 1 else f"{self.particles.n} maps"
        return (
            f"{type(self).__name__}({maps}, {features} features, "
            f"{len(self.columns)} columns, {self.samples} samples, weights={self.weighting!r}, "
            f"device={str(self.particles.device)!r})"
        )

    def _take(self, statistics: HeadStatistics | None) -> None:
        super()._take(statistics)
        self._solved = self._sharpness = None

    @property
    def class_prior(self) -> Prior:
        """The shares pi_c of the classes assumed on read; may be set at any time. None for values.

        The sums determine the mean m_c / n_c of every class, and the pooled scatter around these
        means. Let samples of class c count r_c = n pi_c / n_c times. That changes the means' part
        of the Gram matrix but not the pooled scatter:

            G' = G + sum_c (r_c - 1) / n_c m_c m_c^T,    m'_c = r_c m_c,    n'_c = r_c n_c

        This equals weighting the samples if all classes have the same scatter.
        """
        return self._class_prior

    @class_prior.setter
    def class_prior(self, prior: Prior) -> None:
        if isinstance(prior, str | Mapping):
            if prior != "uniform":
                raise ValueError(
                    "class_prior must be 'uniform', None, or a list of shares in the order of the "
                    f"labels, got {prior!r}"
                )
        elif prior is not None:
            prior = list(prior)  # a copy
            if not all(0 < share < float("inf") for share in prior):
                raise ValueError(f"class_prior must hold a positive share per label, got {prior}")
        self._class_prior = prior if isinstance(self.targets, Classes) else None
        self._solved = self._sharpness = None

    def to(self, device: torch.device | str) -> RaoBlackwellizedFilter:
        """Move maps and sums, in place."""
        self.particles.to(device)
        self._take(self._copied(self.statistics))
        return self

    @property
    @in_plain_mode
    def heads(self) -> list[HeadPosterior]:
        """The head of every particle (of this rank), solved once after each update."""
        if self._solved is None and self.statistics is not None:
            held, count = self._held_out(self.statistics.settle()), self.particles.shard.count
            self._solved = [self._solve(i, self.statistics, held) for i in range(count)]
        return self._solved or []

    def _solve(
        self, particle: int, statistics: HeadStatistics, held: HeldOut | None
    ) -> HeadPosterior:
        gram, moments = statistics.gram[particle].value(), statistics.moments.value()[particle]
        squares = statistics.squares.value()
        if self.class_prior is not None:
            ratio = ratios_of(self.class_prior, self.columns, squares)
            gram = gram + moments.mT @ (((ratio - 1.0) / squares).unsqueeze(1) * moments)
            moments, squares = ratio.unsqueeze(1) * moments, ratio * squares
        classes = isinstance(self.targets, Classes)
        equations = NormalEquations.of(
            gram, moments, squares, classes=classes, standardize=self.standardize
        )
        if held is not None:
            rows = held.features[particle].double() * self.grid.limit - equations.mean
            equations = replace(equations, held=held, rows=rows)
        return solve_head(equations, self.prior_precision, self.noise_variance)

    def _held_out(self, statistics: HeadStatistics) -> HeldOut | None:
        """As many kept samples as cost about as much as a factorisation."""
        kept = statistics.kept
        if kept is None or not len(kept.keys) or len(statistics.columns) < 2:
            return None
        names, labels = self.tasks_and_labels()[1].unique(return_inverse=True)
        most = min(2048, max(256, kept.features.shape[2] // 3), max(16, 2**18 // len(labels)))
        columns = torch.searchsorted(statistics.columns, kept.columns[:most])
        weights = kept.weights[:most]
        if self.class_prior is not None:
            ratio = ratios_of(self.class_prior, self.columns, statistics.counts)
            weights = weights * ratio[columns]
        table = label_table(labels, len(names))
        features = kept.features[:, :most]
        return HeldOut(columns, weights, table, labels[columns], features, self.across_tasks)

    @property
    @in_plain_mode
    def sharpness(self) -> float:
        """The factor on a map's logits f / sqrt(variance), chosen for the mixture of all maps."""
        if self._sharpness is None:
            self._sharpness = DEFAULT_SHARPNESS
            scores = [head.held_out for head in self.heads if head.held_out is not None]
            held = self._held_out(self.statistics) if self.statistics and scores else None
            if held is not None:
                everywhere = self.particles.shard.gather(torch.stack(scores))
                self._sharpness = held.sharpness(everywhere, self.weights)
        return self._sharpness

    @property
    def particle_log_evidence(self) -> Tensor:
        """log p(data | map i): `[N]`, float64."""
        shard = self.particles.shard
        values = [head.log_evidence for head in self.heads] or [0.0] * shard.count
        own = torch.tensor(values, dtype=torch.float64, device=self.particles.device)
        return shard.gather(own)

    @property
    def log_evidence(self) -> Tensor:
        """log p(data) under a uniform prior over the maps: the mean evidence."""
        return log_mean(self.particle_log_evidence)

    @property
    def raw_log_weights(self) -> Tensor:  # type: ignore[override]
        """Untempered normalised log-weights `[N]`."""
        evidence = self.particle_log_evidence
        return normalize(torch.zeros_like(evidence) if self.weighting == "uniform" else evidence)[0]

    @property
    def alive(self) -> Tensor:  # type: ignore[override]
        """Feature maps do not die: `[N]`, all True."""
        return torch.ones(self.particles.n, dtype=torch.bool, device=self.particles.device)

    @in_plain_mode
    def outputs(  # type: ignore[override]
        self, x: Tensor, *, task: int | None = None, across_tasks: str | None = None
    ) -> Tensor:
        """Every particle's calibrated logits `[N, B, C]` (for values, its means `[N, B, K]`).

        With `task`, only that task's columns are used (task-incremental); otherwise all tasks
        compete for each label. A class without samples has logit -inf; an unknown task, all zeros.
        """
        if not isinstance(self.targets, Classes):
            return self._read(x, HeadPosterior.outputs)[0]
        across = self.across_tasks if across_tasks is None else across_tasks
        _choice("across_tasks", across, ("max", "probs"))
        tasks, labels = self.tasks_and_labels()
        count = self.targets.labels(labels)
        if count == 0:
            raise ValueError("nothing to predict yet: update first, or say how many classes exist")
        chosen = torch.ones_like(labels, dtype=torch.bool)
        if task is not None:
            chosen = (tasks == task) | (tasks == -1)
        if not chosen.any():
            shape = self.particles.shard.count, len(x), count
            return labels.new_zeros(shape, dtype=torch.float64)
        means, variances = self._read(x, HeadPosterior.outputs, HeadPosterior.variance)
        factor = means.new_tensor(self.sharpness)  # a number divided by a tensor is rounded twice
        scores = means[..., chosen] * (factor / variances.sqrt()).unsqueeze(2)
        return by_label(scores, label_table(labels[chosen], count), across)

    def _read(
        self, x: Tensor, *functions: Callable[[HeadPosterior, Tensor], Tensor]
    ) -> list[Tensor]:
        """Functions of every particle's head and features: `[N, B, ...]` each.

        Blocks have one size, so that no bit of a sample's result depends on other samples.
        """
        heads = self.heads
        if not heads:
            raise ValueError("nothing to predict yet: update with some data first")
        check_tensor("x", x)
        size = 512 if self.particles.device.type == "cuda" else 128
        found: list[list[Tensor]] = [[] for _ in functions]
        for (rows,) in self.grid.blocks(x):
            for part in self.grid(rows).split(size, 1):
                count = part.shape[1]
                features = pad(part.double(), (0, 0, 0, size - count))
                pairs = list(zip(heads, features, strict=True))
                for values, function in zip(found, functions, strict=True):
                    values.append(torch.stack([function(*pair)[:count] for pair in pairs]))
        return [torch.cat(values, 1) for values in found]

    @in_plain_mode
    def predictive(self, x: Tensor) -> Predictive:
        """Mean and variance of the weighted mixture of Gaussians per head column."""
        means, variances = self._read(x, HeadPosterior.outputs, HeadPosterior.variance)
        weights = self.weights
        mean = self.mixture(means, weights)
        spread = variances.unsqueeze(2) + (means - mean).square()
        return Predictive(mean, self.mixture(spread, weights))

    def mixture(self, values: Tensor, weights: Tensor) -> Tensor:
        """As in every filter, but ranks exchange all values, so that the order of the sum and its
        bits do not depend on the number of ranks."""
        return self.average(self.particles.shard.gather(values), weights)

    @in_plain_mode
    def novelty(self, x: Tensor) -> Tensor:
        """How unlike the data each sample is, averaged over the maps: `[B]`, larger is stranger."""
        classes = isinstance(self.targets, Classes)
        (values,) = self._read(x, lambda head, features: head.novelty(features, classes))
        return self.mixture(values, self.weights)

    def export(self, *, probabilities: bool = False, portable: bool = False) -> ExportedFilter:
        """Maps and heads as one `nn.Module` that computes `predictive(x).mean`, or `predict(x)`.

        Later updates do not change it. `probabilities` need the factors too, 8 N M^2 bytes.
        `portable` inverts them beforehand, for runtimes without triangular solves (ONNX); results
        are equal up to rounding.
        """
        return ExportedFilter(self, probabilities, portable)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def ratios_of(prior: str | Sequence[float], columns: list[Column], counts: Tensor) -> Tensor:
    """r_c of `class_prior` per column `[K]`; a label's share is divided evenly among its tasks."""
    labels = [label for _, label in columns]
    uniform = isinstance(prior, str)
    given = [1.0] * (max(labels) + 1) if uniform else [float(share) for share in prior]
    if max(labels) >= len(given):
        raise ValueError(f"class_prior has {len(given)} shares, but there is a label {max(labels)}")
    tasks = torch.tensor(labels).bincount()
    shares = torch.tensor(given, dtype=torch.float64)[labels] / tasks[labels]
    return (shares / shares.sum()).to(counts) * counts.sum() / counts
