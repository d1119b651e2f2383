"""The result of an audit: scores, variances and verdicts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..io import write_atomically
from . import report
from .answers import Array
from .decomposition import LEVEL, Decomposition, decompose
from .slope import RateSlope

Verdict = Literal["sensitive", "below reseeding", "not shown", "none", "undecided"]


@dataclass(frozen=True, eq=False, repr=False)
class LearnerAudit:
    """One learner's runs over S seeds and O orders of T tasks.

    `matrices` `[S, O, K, T]` are scores: row k holds those on all tasks the k-th time the learner
    was asked, after every task or only at the end; `scores` `[S, O, T]` is the last row.
    `disagreement` `[O, O]` is the fraction of test samples on which two orders predict different
    labels, averaged over seeds; `seed_disagreement` the same between two seeds of one order,
    averaged. `ignores_seed`: every seed gave bit-identical predictions in every order.
    `same_in_every_order`: every order gave bit-identical predictions with every seed.
    `broken_runs`: number of runs with predictions that are not finite, which count as wrong.
    `seconds`: time of learning and predicting. `changed_by_predict`: the answers depend on when
    `predict` is called. `bits`: a hash of all predictions, to compare two machines.
    """

    name: str
    matrices: Array
    disagreement: Array
    seed_disagreement: float
    ignores_seed: bool
    same_in_every_order: bool
    broken_runs: int = 0
    seconds: float = 0.0
    changed_by_predict: bool = False
    bits: str = ""

    def __repr__(self) -> str:
        return f"LearnerAudit({self.name!r}, verdict={self.verdict!r})"

    @property
    def scores(self) -> Array:
        """`[S, O, T]`: the scores after the last task."""
        return self.matrices[:, :, -1]

    @cached_property
    def parts(self) -> Decomposition:
        """Order, seed and interaction variance, and the permutation test."""
        return decompose(self.scores)

    @property
    def order_variance(self) -> float:
        """mean_t mean_s Var_o S[s, o, t]."""
        return self.parts.order_variance

    @property
    def seed_variance(self) -> float:
        """mean_t mean_o Var_s S[s, o, t]."""
        return self.parts.seed_variance

    @property
    def p_value(self) -> float | None:
        """Of "the order has no effect"; None if seeds or orders make no difference at all."""
        return None if self.ignores_seed or self.same_in_every_order else self.parts.p_value

    @property
    def verdict(self) -> Verdict:
        """What the runs show.

        - `"none"`: every order gave the same predictions to the bit.
        - `"sensitive"`: the scores vary more between orders than between seeds (each corrected for
          its number), *and* the permutation test rejects "no effect" at 5%. For a learner that
          ignores its seed: the scores vary at all.
        - `"below reseeding"`: the test rejects, but the seed matters as much or more.
        - `"not shown"`: the test does not reject.
        - `"undecided"`: there are too few runs for the test to reject.
        """
        if self.same_in_every_order:
            return "none"
        if self.ignores_seed:
            return "sensitive" if self.order_variance > 0 else "not shown"
        if self.parts.smallest_p_value > LEVEL:
            return "undecided"
        if self.parts.p_value > LEVEL:
            return "not shown"
        exceeds = self.parts.fair_order_variance > self.parts.fair_seed_variance
        return "sensitive" if exceeds else "below reseeding"

    @property
    def sensitive(self) -> bool:
        return self.verdict == "sensitive"

    @property
    def order_averages(self) -> Array:
        """`[O]`: scores averaged over seeds and tasks."""
        return self.scores.mean(axis=(0, 2))

    @property
    def worst_order(self) -> int:
        """The index of the order with the lowest average."""
        return int(self.order_averages.argmin())

    @property
    def best_order(self) -> int:
        return int(self.order_averages.argmax())

    def just_learned(self, orders: Sequence[tuple[int, ...]]) -> float | None:
        """The average score on a task directly after it was learned; None if not asked then."""
        steps = range(self.matrices.shape[2])
        if len(steps) == 1:
            return None
        return float(np.mean([self.matrices[:, o, steps, s] for o, s in enumerate(orders)]))

    @property
    def suffering_task(self) -> int:
        """The task whose score depends most on the order: the largest order variance."""
        return int(self.parts.task_order_variance.argmax())

    @property
    def mean_disagreement(self) -> float:
        """The disagreement averaged over all pairs of different orders."""
        count = len(self.disagreement)
        return float(self.disagreement.sum() / (count * (count - 1)))

    def as_dict(self) -> dict[str, object]:
        """Plain numbers and lists, for JSON."""
        numbers = {**vars(self.parts), **{name: getattr(self, name) for name in REPORTED}}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in numbers.items()
        }


REPORTED = (
    *("name", "verdict", "p_value", "worst_order", "best_order", "suffering_task"),
    *("order_averages", "mean_disagreement", "seed_disagreement", "disagreement", "ignores_seed"),
    *("same_in_every_order", "broken_runs", "changed_by_predict", "seconds", "bits", "scores"),
    "matrices",
)


@dataclass(frozen=True)
class Tail:
    """An order found by a search: its average with the seed of the search, and with another."""

    order: tuple[int, ...]
    name: str
    average: float
    again: float


@dataclass(frozen=True)
class Tails:
    """The worst and the best order that `runs` more runs found.

    `random_worst`, `random_best`: the averages of the worst and the best of the audit's own orders
    with the same seed.
    """

    worst: Tail
    best: Tail
    random_worst: float
    random_best: float
    runs: int


@dataclass(frozen=True, eq=False, repr=False)
class OrderSensitivity:
    """An audit of a learner, and of others on the same tasks, orders and seeds.

    `str(result)` is the table with the findings, `html()` the whole report as a page,
    `as_dict()` and `json()` hold every number, and `save(folder)` writes all of them. `digest` is a
    hash of the data in the orders that were run: equal in two processes that ran the same.
    """

    learner: LearnerAudit
    comparisons: tuple[LearnerAudit, ...]
    tasks: tuple[str, ...]
    orders: tuple[tuple[int, ...], ...]
    seeds: int
    order_names: tuple[str, ...]
    score: str = "accuracy"
    chance: float = 0.0
    chance_in_task: float = 0.0
    samples: int = 1
    digest: str = ""
    tails: Tails | None = None
    slope: RateSlope | None = None

    @property
    def sensitive(self) -> bool:
        """Whether the learner's result depends on the order beyond chance; see `verdict`."""
        return self.learner.sensitive

    @property
    def learners(self) -> tuple[LearnerAudit, ...]:
        return self.learner, *self.comparisons

    def __getitem__(self, name: str) -> LearnerAudit:
        """The learner of this name."""
        by_name = {each.name: each for each in self.learners}
        if name not in by_name:
            raise KeyError(f"this audit has {', '.join(by_name)}, not {name!r}")
        return by_name[name]

    def as_dict(self) -> dict[str, Any]:
        return {
            "tasks": list(self.tasks),
            "orders": [list(order) for order in self.orders],
            "seeds": self.seeds,
            "score": self.score,
            "chance": self.chance,
            "digest": self.digest,
            "search": self.tails and asdict(self.tails),
            "slope": self.slope and {**asdict(self.slope), "slope": self.slope.slope},
            "learner": self.learner.as_dict(),
            "comparisons": [each.as_dict() for each in self.comparisons],
        }

    def json(self) -> str:
        return json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n"

    def text(self) -> str:
        """The table and the findings in words."""
        return report.text(self)

    def html(self, command: str = "") -> str:
        """The whole report as one page that needs nothing else: table, findings, tasks, orders."""
        return report.html(self, command)

    def __repr__(self) -> str:
        return f"OrderSensitivity({self.learners}, {len(self.orders)} orders, {self.seeds} seeds)"

    __str__ = text
    _repr_html_ = html

    def save(self, folder: Path | str, command: str = "") -> list[Path]:
        """Write report.html and report.json into `folder`; return their paths."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        texts = {
            place / "report.html": self.html(command),
            place / "report.json": self.json(),
        }
        for path, text in texts.items():
            write_atomically(path, text.encode())
        return list(texts)
