"""A report as data: `orderless report --json` writes it, the documentation reads it."""

from dataclasses import dataclass, field
from typing import Literal

from orderless.errors import UserError
from orderless_lab.storage.typed import Setting, optional

from ..experiments.record import ExpertFacts, Table


class ReportError(UserError):
    """A report cannot be made; the message tells the user why in one sentence."""


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """One row: numbers over the largest complete block of seeds x orders; None if unknown.

    Scores are fractions or returns. `order_contributions`: the contribution of each order to the
    normalized variance, over all seeds together and within each seed. `task_averages`,
    `place_averages`: by task, and by place in the order. `plasticity`: measure -> mean by place in
    the order, and `plasticity_half` half of its 95 % interval over orders. `weight_spread`: term
    of the loss -> standard deviation of its log-weight increments, by place. `average_released`:
    see `paper.released_scoring`.
    """

    average: float
    average_logits: float | None = None
    average_probs: float | None = None
    variance: float | None
    order_variance: float | None
    seed_variance: float | None
    normalized_variance: float | None
    normalized_order_variance: float | None
    worst_order: float
    order_averages: list[float]
    order_contributions: list[float | None] | None
    order_contributions_within_seed: list[float | None] | None
    worst_order_index: int
    worst_order_tasks: list[int]
    interval: list[float]
    task_averages: list[float]
    place_averages: list[float] = field(default_factory=list)
    seed_averages: list[float]
    just_learned: float | None = optional()
    forgetting: float | None
    first_minus_last: float | None
    bwt: float | None
    fwt: float | None
    nll: float | None
    ece: float | None
    disagreement: float | None
    orders: int
    seeds: int
    order_indices: list[int]
    seed_values: list[int]
    cells: int
    died: int
    duration: float
    particles: int | None
    ess_final: float | None
    largest_weight_final: float | None
    log_evidence: float | None
    temperature: float | None
    alive: float | None
    plasticity: dict[str, list[float]] = field(default_factory=dict)
    plasticity_half: dict[str, list[float]] = field(default_factory=dict)
    weight_spread: dict[str, list[float]] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)
    scoring_duration: float | None = optional()
    average_released: float | None = optional()

    @property
    def by_order(self) -> dict[int, float]:
        """Order index -> average."""
        return dict(zip(self.order_indices, self.order_averages, strict=True))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper and the verdict on it."""

    claim: str
    measure: str
    holds: bool | Literal["not decidable"] = "not decidable"
    evidence: str = ""
    difference: float | None = None
    interval: list[float] | None = None  # of the difference on these tasks
    across: list[float] | None = optional()  # on other tasks in other orders
    paper: str | None = None  # the figures of its own table


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One table: all methods of one benchmark, scenario and preset."""

    benchmark: str
    scenario: str
    preset: str
    score_kind: Literal["accuracy", "return"]
    task_names: list[str] | None
    settings: dict[str, Setting]
    methods: dict[str, MethodSummary]
    command: str | None
    device: str | None
    versions: dict[str, str]
    duration: float
    notes: list[str]
    expert: ExpertFacts | None = optional()
    random_return: float | None = optional()
    claims: list[Claim]

    @property
    def table(self) -> Table:
        return self.benchmark, self.scenario, self.preset

    def of_expert(self, score: float | None) -> float | None:
        """The score of a clone on the scale from untrained networks (0) to the expert (1).

        None if one of them is unknown, or if the expert is no better than untrained networks.
        """
        shown = self.expert.level_returns if self.expert else []
        known = [value for value in shown if value is not None]
        if score is None or self.random_return is None or not known or len(known) < len(shown):
            return None
        gain = sum(known) / len(known) - self.random_return
        return (score - self.random_return) / gain if gain > 0 else None

    @property
    def returns(self) -> bool:
        """Whether scores are returns of games and not accuracies."""
        return self.score_kind == "return"
