r"""The exact filter: a particle is a feature map, and its linear head is integrated out.

Split what a network learns into a feature map x_i (the particle, drawn once, never moved) and the
linear head W on top. Given the map, the posterior of W under squared error is Gaussian and a
function of sums over the data (Rao-Blackwellisation: what can be integrated is not sampled):

    G_i = sum_t phi_i(t) phi_i(t)^T        C_i = sum_t phi_i(t) y(t)^T
    W | x_i ~ N((A_i + lambda I)^-1 B_i, (A_i + lambda I)^-1 / beta)
    w_i ∝ p(y | x_i) = integral of p(y | W, x_i) p(W) dW

with A, B the sums after standardising features by their own mean and variance, read off the same
sums. Prior precision and noise variance are no part of the sums: they are set on read, by
maximising the evidence (see `evidence.py`). Sums have no order, and here they have no rounding
either (see `statistics.py`), so the result is the same *to the bit* for any order of tasks, batches
or single samples, any batching and any sharding; `a + b` is one filter fed the data of both.

With one particle and a pre-trained backbone as its feature map this is analytic continual learning:
ACIL (Zhuang et al., 2022), RanPAC (McDonnell et al., 2023), and, up to the scaling of its
discriminants, streaming LDA (Hayes and Kanan, 2020). New are the weighted *set* of maps with exact
evidence, the predictive variance and the mergeable exact sums.

Memory: 16 N M^2 bytes (sums and, once read, factors), whatever the number of samples.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...particles import Ensemble
from ..base import Predictor
from ..weights import normalize
from .calibration import CalibrationSample, content_hash
from .evidence import HeadPosterior, NormalEquations, solve_heads
from .quantize import GridFeatures, as_ensemble
from .statistics import HeadStatistics, solved_together
from .targets import Classes, Values


class Predictive(NamedTuple):
    """Mean and variance of the mixture's prediction per head column, `[B, K]` each."""

    mean: Tensor
    variance: Tensor


class RaoBlackwellizedFilter(Predictor):
    """Particles are fixed feature maps; `update` adds data, everything else is computed on read.

    Args:
        features: an `ol.Ensemble` of feature maps (`[N, B, M]`), or one module with outputs
            `[B, M]` (N = 1): random features from `orderless.features`, a frozen or pre-trained
            backbone. Always run in evaluation mode.
        weights: `"evidence"`: w_i ∝ p(data | map i), the Bayesian answer, which on large data puts
            everything on one map; `"tempered"`: the same, tempered until `min_ess` maps count;
            `"uniform"`: the plain mean, usually the most accurate.
        min_ess: for `"tempered"`; N/2 unless given.
        targets: `"classes"` (integer labels) or `"values"` (floats `[B]` or `[B, K]`).
        classes: the number of classes if known; labels outside are then refused, and predictions
            before the first update are uniform. Otherwise a class adds its column when it appears.
        across_tasks: how the scores of one label from several tasks combine: `"max"` or `"probs"`
            (sum of probabilities). Summed raw outputs would equal one head without tasks.
        standardize: bring features to mean 0 and variance 1 and give the head an intercept.
            `False` takes features as they are, without an intercept.
        prior_precision, noise_variance: fix both instead of maximising the evidence.
        calibration: so many samples, as features, are kept to calibrate probabilities (see
            `calibration.py`); 0 keeps none, and probabilities are rough.
        feature_limit, target_limit: powers of two. Features beyond are clipped (`clipped` counts
            them), targets beyond refused; the grid is limit / 2^bits.
        bits: of the grid; up to 2^(52 - 2 * bits) samples can be summed exactly.
        block_size: rows per block for maps that are not `exact`, see `grid.py`.
    """

    plain_state = ("fingerprint", "targets", "statistics", "sample")

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
        calibration: int = 256,
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
        ensemble = as_ensemble(features)
        self.grid = GridFeatures(ensemble, feature_limit, bits, block_size)
        self.targets: Classes | Values = Classes(classes)
        if targets == "values":
            self.targets = Values(target_limit, bits)
        self._statistics: HeadStatistics | None = None
        self._sample: CalibrationSample | None = None
        self._solved: list[tuple[HeadPosterior, float]] | None = None
        self.weighting, self.across_tasks, self.standardize = weights, across_tasks, standardize
        self.prior_precision, self.noise_variance = prior_precision, noise_variance
        self.calibration = calibration if targets == "classes" else 0
        if weights == "tempered" and min_ess is None:
            min_ess = max(1.0, ensemble.n / 2)
        link = "softmax" if targets == "classes" else "identity"
        super().__init__(ensemble, link=link, min_ess=min_ess)
        self.fingerprint = self.grid.fingerprint()

    # ------------------------------------------------------------------ data in

    @property
    def samples(self) -> int:
        """How many samples were absorbed."""
        return 0 if self._statistics is None else self._statistics.samples

    @property
    def clipped(self) -> int:
        """How many feature values lay beyond `feature_limit`; should be few."""
        return 0 if self._statistics is None else self._everywhere(self._statistics.clipped)

    def _everywhere(self, count: int) -> int:
        """The sum over all ranks."""
        return int(self.particles.shard.sum(torch.tensor(count, device=self.particles.device)))

    @property
    def columns(self) -> list[tuple[int, int]]:
        """The head's columns (task, label) in ascending order; task is -1 where none was given."""
        return [] if self._statistics is None else list(self._statistics.columns)

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor, task: int | None = None) -> None:
        """Absorb samples x `[B, ...]` with targets y `[B]`. After an error nothing has changed.

        With `task` the head has a column per (task, label); without, one per label.
        """
        for name, value in (("x", x), ("y", y)):
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise TypeError(f"{name} must be a tensor, got {kind}: use torch.as_tensor")
        y = y.to(self.particles.device)
        self._check(x, y, task)
        self._warn_of_clipping(x)
        room, sample = None, self._sample
        try:
            for rows, labels in self.grid.blocks(x, y):
                features, clipped = self.grid(rows)
                if room is None:
                    room = self._room(features.shape[-1], y, task)
                sample = self._offered(sample, features, labels, task)
                room.add(features, self.targets.encode(labels, task, room.columns))
                room.clipped += clipped
        except BaseException:
            self._take_back(x)
            raise
        self._statistics, self._sample, self._solved = room, sample, None

    def _warn_of_clipping(self, x: Tensor) -> None:
        limit = getattr(self.particles.template, "input_limit", None)
        beyond = 0.0 if limit is None else float((x.abs() > limit).double().mean())
        if beyond > 0.1:
            warnings.warn(
                f"{100 * beyond:.0f} % of the inputs lie beyond +-{limit:g}, where the feature "
                "maps clip them: scale the data, or give the maps another input_limit",
                stacklevel=4,
            )

    def _take_back(self, x: Tensor) -> None:
        """Undo an update that broke off; the sums are exact, so subtracting leaves no trace."""
        statistics = self._statistics
        begun = 0 if statistics is None else statistics.begun()
        for (rows,) in self.grid.blocks(x[:begun]) if begun else ():
            assert statistics is not None
            statistics.take_back(self.grid(rows)[0])

    def _check(self, x: Tensor, y: Tensor, task: int | None) -> None:
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(
                f"x has {len(x)} samples and y has {len(y)}: give at least one, and one target each"
            )
        if x.is_floating_point() and not x.isfinite().all():
            raise ValueError("x holds values that are not finite: clean the data first")
        self._check_count(self.samples + len(x))
        self.targets.check(y, task, self.columns)

    def _check_count(self, samples: int) -> None:
        most = 2 ** (52 - 2 * self.grid.bits)
        if samples > most:
            raise ValueError(
                f"{samples} samples cannot be summed exactly with bits={self.grid.bits}: the limit "
                f"is {most}; build the filter with fewer bits"
            )

    def _room(self, features: int, y: Tensor, task: int | None) -> HeadStatistics:
        """Statistics with all the columns that `y` needs; sums so far are taken along."""
        device, n = self.particles.device, self.particles.shard.count
        statistics = self._statistics or HeadStatistics.empty(n, features, device)
        if statistics.features != features:
            raise ValueError(
                f"the feature map gave {features} features, but {statistics.features} before: it "
                "must give the same number for every input"
            )
        return statistics.with_columns(self.targets.columns(y, task))

    def _offered(
        self, sample: CalibrationSample | None, features: Tensor, y: Tensor, task: int | None
    ) -> CalibrationSample | None:
        if not self.calibration:
            return None
        n, _, width = features.shape
        sample = sample or CalibrationSample.empty(n, width, features.device)
        columns = torch.stack([torch.full_like(y, -1 if task is None else task), y], 1).long()
        # by the features of particle 0, whoever holds it: all ranks keep the same samples
        hashes = content_hash(features[0] * self.grid.scale, columns).unsqueeze(0)
        hashes = self.particles.shard.pick(hashes, 0)
        return sample.offered(hashes, features, columns, self.calibration)

    def __add__(self, other: RaoBlackwellizedFilter) -> RaoBlackwellizedFilter:
        """A filter with the data of both; this one's settings. Both stay as they are."""
        if not isinstance(other, RaoBlackwellizedFilter):
            return NotImplemented
        if str(self.targets) != str(other.targets):
            raise ValueError(f"targets are {self.targets} here and {other.targets} there")
        if self.fingerprint != other.fingerprint:
            raise ValueError(
                "these filters have different feature maps or grids "
                f"({self.fingerprint[:12]} and {other.fingerprint[:12]}): only sums over the same "
                "features can be added; build both from the same ensemble and seed"
            )
        if self.calibration != other.calibration:
            raise ValueError(
                f"calibration is {self.calibration} here and {other.calibration} there: filters "
                "to be added must keep samples of the same size"
            )
        self._check_count(self.samples + other.samples)
        tasks = {task >= 0 for task, _ in self.columns + other.columns}
        if len(tasks) > 1:
            raise ValueError("one of these filters has a column per task and the other has not")
        self.targets.check_others(self.columns, other.columns)
        both = copy.copy(self)
        both._solved = None
        if self._statistics is None or other._statistics is None:
            source = other if self._statistics is None else self
            both._sample = source._sample
            if source._statistics is not None:
                state, device = source._statistics.state_dict(), self.particles.device
                both._statistics = HeadStatistics.from_state(state, device)
            return both
        both._statistics = self._statistics.plus(other._statistics)
        if self._sample is not None and other._sample is not None:
            both._sample = self._sample.plus(other._sample, self.calibration)
        return both

    # ------------------------------------------------------------------ posterior and weights

    @property
    def heads(self) -> list[HeadPosterior]:
        """Every particle's head: weight, factor, prior precision, noise variance, evidence.

        Of a sharded ensemble, the heads of the particles here.
        """
        return [head for head, _ in self._posterior()]

    @torch.no_grad()
    def _posterior(self) -> list[tuple[HeadPosterior, float]]:
        """(head, sharpness) per particle; solved once, kept until the next update."""
        if self._solved is None and self._statistics is not None:
            particles, size = self.particles, self._statistics.features
            count = particles.shard.count
            step = solved_together(count, size, particles.device, particles.chunk_size)
            heads: list[HeadPosterior] = []
            for start in range(0, count, step):
                heads += self._solve(slice(start, start + step), self._statistics)
            sharpness = [self._sharpness(*pair) for pair in enumerate(heads)]
            self._solved = list(zip(heads, sharpness, strict=True))
        return self._solved or []

    def _solve(self, some: slice, statistics: HeadStatistics) -> list[HeadPosterior]:
        equations = NormalEquations.of(
            statistics.gram[some],
            statistics.moments[some],
            statistics.squares,
            classes=isinstance(self.targets, Classes),
            standardize=self.standardize,
        )
        return solve_heads(equations, self.prior_precision, self.noise_variance)

    def _sharpness(self, particle: int, head: HeadPosterior) -> float:
        if not isinstance(self.targets, Classes):
            return 1.0
        sample = self._sample or CalibrationSample.empty(1, 1, head.weight.device)
        return sample.sharpness(head, self.columns, particle)

    @property
    def particle_log_evidence(self) -> Tensor:
        """log p(data | map i): `[N]`, float64."""
        shard = self.particles.shard
        values = [head.log_evidence for head in self.heads] or [0.0] * shard.count
        own = torch.tensor(values, dtype=torch.float64, device=self.particles.device)
        return shard.gather(own)

    @property
    def log_evidence(self) -> Tensor:
        """log p(data) under all maps, equally probable before the data: the mean evidence."""
        evidence = self.particle_log_evidence
        return torch.logsumexp(evidence, 0) - torch.logsumexp(torch.zeros_like(evidence), 0)

    @property
    def raw_log_weights(self) -> Tensor:  # type: ignore[override]
        """Untempered normalised log-weights `[N]`."""
        evidence = self.particle_log_evidence
        return normalize(torch.zeros_like(evidence) if self.weighting == "uniform" else evidence)[0]

    @property
    def alive(self) -> Tensor:  # type: ignore[override]
        """Feature maps do not die: `[N]`, all True."""
        return torch.ones(self.particles.n, dtype=torch.bool, device=self.particles.device)

    # ------------------------------------------------------------------ prediction

    @torch.no_grad()
    def outputs(  # type: ignore[override]
        self, x: Tensor, *, task: int | None = None, across_tasks: str | None = None
    ) -> Tensor:
        """Every particle's calibrated logits `[N, B, C]` (for values, its means `[N, B, K]`).

        With `task`, that task's columns alone (task-incremental); otherwise all tasks compete for
        each label. A class that never appeared has logit -inf; an unknown task, all zeros.
        """
        if not isinstance(self.targets, Classes):
            return self._moments(x)[0]
        across = self.across_tasks if across_tasks is None else across_tasks
        _choice("across_tasks", across, ("max", "probs"))
        columns, count = self.columns, self.targets.labels(self.columns)
        if count == 0:
            raise ValueError("nothing to predict yet: update first, or say how many classes exist")
        chosen = [k for k, (owner, _) in enumerate(columns) if task is None or owner in (task, -1)]
        n, device = self.particles.shard.count, self.particles.device
        if not chosen:
            return torch.zeros(n, len(x), count, dtype=torch.float64, device=device)
        means, variances = self._moments(x)
        sharpness = means.new_tensor([[factor] for _, factor in self._posterior()])
        scores = means[..., chosen] * (sharpness / variances.sqrt()).unsqueeze(2)
        scores = scores - scores.amax(2, keepdim=True)
        logits = torch.full((n, len(x), count), -torch.inf, dtype=torch.float64, device=device)
        for label in {columns[k][1] for k in chosen}:
            part = scores[..., [i for i, k in enumerate(chosen) if columns[k][1] == label]]
            logits[..., label] = part.amax(-1) if across == "max" else part.logsumexp(-1)
        return logits

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means `[N, B, K]` and predictive variances `[N, B]` of every particle."""
        heads = self.heads
        if not heads:
            raise ValueError("nothing to predict yet: update with some data first")
        means, variances = [], []
        for (rows,) in self.grid.blocks(x):
            features = self.grid(rows)[0]
            pairs = [(head, f.double()) for head, f in zip(heads, features, strict=True)]
            means.append(torch.stack([head.outputs(f) for head, f in pairs]))
            variances.append(
                torch.stack([head.noise_variance * (1.0 + head.leverage(f)) for head, f in pairs])
            )
        return torch.cat(means, 1), torch.cat(variances, 1)

    @torch.no_grad()
    def predictive(self, x: Tensor) -> Predictive:
        """Mean and variance of the weighted mixture of Gaussians per head column."""
        means, variances = self._moments(x)
        weights = self.weights
        mean = self.mixture(means, weights)
        spread = variances.unsqueeze(2) + (means - mean).square()
        return Predictive(mean, self.mixture(spread, weights))

    def mixture(self, values: Tensor, weights: Tensor) -> Tensor:
        """As in every filter; here all values are sent, to be summed in the same order whatever
        the number of ranks: not a bit may depend on it."""
        return self.average(self.particles.shard.gather(values), weights)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Maps, sums and calibration sample; see `ol.save`."""
        particles = self._collected(self.particles.state_dict())
        sums = None if self._statistics is None else self._statistics.state_dict()
        sample = None if self._sample is None else self._sample.state_dict()
        if sums is not None:
            own = self._collected({name: sums[name] for name in ("gram", "moments")})
            sums |= {**own, "clipped": self.clipped}
        if sample is not None:
            sample["features"] = self.particles.shard.collect(sample["features"])
        return {
            "kind": type(self).__name__,
            "particles": particles,
            "fingerprint": self.grid.fingerprint(particles),
            "targets": type(self.targets).__name__,
            "statistics": sums,
            "sample": sample,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over maps and sums; those of another architecture or grid are refused."""
        self._check_state(state)
        if self.grid.fingerprint(state["particles"]) != state["fingerprint"]:
            raise ValueError("this state is of another kind of feature map or of another grid")
        if state["targets"] != type(self.targets).__name__:
            ours = type(self.targets).__name__
            raise ValueError(f"this state is of targets {state['targets']}, not {ours}")
        if state["statistics"] is not None:
            theirs = [tuple(column) for column in state["statistics"]["columns"]]
            self.targets.check_others([], theirs)
        self.particles.load_state_dict(self._local(state["particles"]))
        device, shard = self.particles.device, self.particles.shard
        sums, sample = state["statistics"], state["sample"]
        if sums is not None:
            own = self._local({name: sums[name] for name in ("gram", "moments")})
            sums = {**sums, **own, "clipped": sums["clipped"] if shard.rank == 0 else 0}
        if sample is not None:
            sample = {**sample, "features": shard.local(sample["features"])}
        self._statistics = None if sums is None else HeadStatistics.from_state(sums, device)
        self._sample = None if sample is None else CalibrationSample.from_state(sample, device)
        self._solved, self.fingerprint = None, self.grid.fingerprint()


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
