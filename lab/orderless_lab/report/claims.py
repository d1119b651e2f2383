"""The paper's claims, judged one by one on our own measurements.

A comparison holds if the paired 95 % interval over orders and seeds lies wholly on the claimed
side of 0; if not, the evidence tells whether the opposite or no difference is seen. It is not
decidable if a row is missing or broke off, or if fewer than ``MINIMUM_ORDERS`` orders are shared:
four orders are often all on one side by chance. "Less variable" is judged twice: on the total
variance (probably the paper's; not decidable with two seeds) and on the order variance.

Mean returns in games, where orders are expensive, are judged from 3 orders on. A second interval,
``across``, treats the levels as a sample as well: it tells which effects on the game are excluded.

Plasticity is judged on the second half of each order by Student's interval over the orders' paired
differences, against PPO and against unweighted particles: what those keep as well is no effect of
the weights.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from orderless import metrics
from orderless.text import percent

from ..experiments.record import CellRecord
from ..paper import CHANCE, TABLE_1, TABLE_2, benchmark_label, method_label, published
from ..text import count
from .blocks import Cells, by_order_place, by_place, complete_block, score_grid
from .summary import Claim, Summary

MINIMUM_ORDERS = 5
FEWEST_ORDERS = 3  # of games
NEAR_CHANCE = 0.03
COMPETING = 0.01
ROUNDING = 1e-12  # smaller differences are rounding errors

Measure = Literal["mean", "variance", "order_variance"]
MEASURES: dict[Measure, str] = {
    "mean": "average",
    "variance": "total variance",
    "order_variance": "order variance",
}
PLASTIC = ("ppo", "ppo+averaging", "ppo+wpf")  # the rows whose plasticity is compared
# measure -> (in words, "high" or "low" if one of them is better)
PLASTICITY = {
    "return": ("area under a level's curve", "high"),
    "dormant": ("dormant units", "low"),
    "effective_rank": ("effective rank", "high"),
    "mean_abs_weight": ("mean size of weights", None),
}


def _comparisons(benchmark: str, methods: Set[str]) -> list[tuple[str, str, Measure]]:
    """The paper's claims about its tables, also for tuned rows if there are any: the first method
    has the higher mean, or the lower variance, than the second."""
    base = {"procgen-bc": "bc", "procgen-lifelong": "ppo"}.get(benchmark)
    found: list[tuple[str, str, Measure]]
    if base is None:
        plain = ["ewc", "lwf", "si"]
        found = [("wpf", other, "mean") for other in ("averaging", "bootstrap", "gd")]
        found += [("wpf", "gd", measure) for measure in list(MEASURES)[1:]]
    else:
        plain = [base] if base == "bc" else [base, f"{base}+trac", f"{base}+ewc"]
        others = ["averaging", "bootstrap"] + (["ewc"] if base == "ppo" else [])
        found = [(f"{base}+wpf", f"{base}+{other}", "mean") for other in others]
    tuned = [f"{each}-tuned" for each in plain]
    plain += [name for name in tuned if {name, f"{name}+wpf"} <= methods]
    return found + [(f"{each}+wpf", each, measure) for each in plain for measure in MEASURES]


def judge_claims(summary: Summary, cells: Sequence[CellRecord]) -> list[Claim]:
    """The verdicts on the paper's claims for one table; empty for benchmarks it does not have."""
    benchmark = summary.benchmark
    if benchmark not in (TABLE_2 if summary.returns else TABLE_1):
        return []
    judge = Judge(summary, cells)
    claims = [judge.compare(*each) for each in _comparisons(benchmark, summary.methods.keys())]
    if not summary.returns:
        claims += [judge.near_chance("bootstrap"), judge.near_chance("gd"), judge.front()]
    if benchmark == "splitmnist":
        claims.append(judge.best_of_all())
    if benchmark == "splitcifar100":
        claims.append(judge.competes())
    if benchmark == "procgen-lifelong":
        claims += [
            judge.keeps_plasticity(other, name, words, better)
            for other in PLASTIC[:-1]
            for name, (words, better) in PLASTICITY.items()
            if better
        ]
    return claims


def decided(
    claim: Claim,
    values: dict[str, float],
    difference: metrics.Difference,
    runs: str,
    *,
    better: str = "high",
    form: str = ".3f",  # "%" writes fractions as percentages
) -> Claim:
    """The claim with its verdict and evidence: it holds if the interval of the difference between
    the first and the second method lies wholly on the better side of 0."""
    above, below = difference.low > ROUNDING, difference.high < -ROUNDING
    holds, opposite = (above, below) if better == "high" else (below, above)
    seen = "" if holds else "; the opposite is seen" if opposite else "; no difference is shown"
    fractions = form == "%"
    both = [f"{n} {percent(v)} %" if fractions else f"{n} {v:{form}}" for n, v in values.items()]
    value, low, high = (f"{100 * v:+.2f}" if fractions else f"{v:+{form}}" for v in difference)
    return replace(
        claim,
        holds=holds,
        difference=difference.value,
        interval=[difference.low, difference.high],
        evidence=f"{', '.join(both)}; difference {value}{' points' if fractions else ''} "
        f"[{low}, {high}] over {runs}{seen}.",
    )


@dataclass(frozen=True)
class Judge:
    """Judges claims on the cells of one table."""

    summary: Summary
    cells: Sequence[CellRecord]

    def compare(self, left: str, right: str, measure: Measure = "mean") -> Claim:
        mean, returns = measure == "mean", self.summary.returns
        better = "is above" if mean else "has lower variance than"
        claim = Claim(
            claim=f"{method_label(left)} {better} {method_label(right)}",
            measure=MEASURES[measure],
            paper=self._in_the_paper(left, right, measure),
        )
        needed = FEWEST_ORDERS if returns and mean else MINIMUM_ORDERS
        shared = self._shared_block(left, right, needed)
        if isinstance(shared, str):
            return replace(claim, evidence=shared)
        *both, seeds, orders = shared
        if measure == "variance" and len(seeds) == 2:
            few = f"{left} and {right} share 2 seeds; a total variance needs 1 or at least 3."
            return replace(claim, evidence=few)
        ours, theirs = (score_grid(cells, seeds, orders) for cells in both)
        assert ours is not None and theirs is not None  # load_run has checked every final row
        difference = metrics.paired_difference(ours, theirs, measure)
        statistic = metrics.average if mean else getattr(metrics, measure)
        claim = decided(
            claim,
            {left: statistic(ours), right: statistic(theirs)},
            difference,
            f"{count(len(seeds), 'seed')} x {count(len(orders), 'order')}",
            better="high" if mean else "low",
            form=".2g" if not mean else ".3f" if returns else "%",
        )
        if returns and mean and ours.shape[2] > 1:
            across = metrics.difference_across(ours, theirs)
            words = claim.evidence + self._excluded(left, right, across)
            claim = replace(claim, across=[across.low, across.high], evidence=words)
        return claim

    def near_chance(self, name: str) -> Claim:
        chance = CHANCE[self.summary.benchmark].get(self.summary.scenario)
        claim = Claim(
            claim=f"{method_label(name)} is near chance",
            measure=MEASURES["mean"],
            evidence=unfit(self.summary, name) or "",
            paper=f"{percent(TABLE_1[self.summary.benchmark][name][0])} %",
        )
        if claim.evidence or chance is None:
            return claim
        entry = self.summary.methods[name]
        if entry.orders < MINIMUM_ORDERS:
            few = f"{name} has {count(entry.orders, 'order')}; a verdict needs {MINIMUM_ORDERS}."
            return replace(claim, evidence=few)
        low, high = entry.interval
        return replace(
            claim,
            holds=abs(entry.average - chance) <= NEAR_CHANCE,
            difference=entry.average - chance,
            interval=[low - chance, high - chance],
            evidence=f"{name} {percent(entry.average)} % "
            f"[{percent(low)}, {percent(high)}], chance {percent(chance)} %; "
            f"near means within {100 * NEAR_CHANCE:.0f} points.",
        )

    def front(self) -> Claim:
        """ "The bottom right of Figure 2 is dominated by WPF or X + WPF": the Pareto front."""
        table, methods = TABLE_1[self.summary.benchmark], self.summary.methods
        claim = Claim(
            claim="The bottom right of Figure 2 belongs to rows with WPF",
            measure="average and normalized variance",
            evidence=unfit(self.summary, *table) or "",
        )
        if claim.evidence:
            return claim
        if undefined := [name for name in table if methods[name].normalized_variance is None]:
            words = "No normalized variance, as the mean of a task is 0: "
            return replace(claim, evidence=f"{words}{', '.join(undefined)}.")
        rows = {n: (methods[n].average, -(methods[n].normalized_variance or 0.0)) for n in table}
        best = [
            name
            for name, (mean, steady) in rows.items()
            if not any(m > mean and s > steady for m, s in rows.values())
        ]
        words = ", ".join(
            f"{n} ({percent(rows[n][0])} %, {-rows[n][1]:.2g})"
            for n in sorted(best, key=lambda n: -rows[n][0])
        )
        evidence = f"No other row is both higher and steadier than: {words}."
        return replace(claim, holds=all(n.endswith("wpf") for n in best), evidence=evidence)

    def competes(self) -> Claim:
        """ "WPF competes with LwF on SplitCIFAR100": it is at most `COMPETING` below."""
        claim = replace(
            self.compare("wpf", "lwf"),
            claim="Weighted particle filter competes with LwF on "
            f"{benchmark_label('splitcifar100')}",
        )
        if claim.interval is None:
            return claim
        numbers = ";".join(claim.evidence.rstrip(".").split(";")[:2])  # without its verdict
        words = f"{numbers}; to compete means to lose at most {100 * COMPETING:.0f} point."
        return replace(claim, holds=claim.interval[0] >= -COMPETING, evidence=words)

    def best_of_all(self) -> Claim:
        """ "WPF outperforms all other methods": against the best of the paper's other rows."""
        table, methods = TABLE_1["splitmnist"], self.summary.methods
        missing = [name for name in table if name not in methods]
        present = [name for name in table if name not in ("wpf", *missing)]
        best = max(present, key=lambda name: methods[name].average, default="lwf+wpf")
        claim = replace(
            self.compare("wpf", best),
            claim="Weighted particle filter outperforms all other methods on "
            f"{benchmark_label('splitmnist')}",
            paper=f"{percent(table['wpf'][0])} % against {percent(table['lwf+wpf'][0])} % "
            "for LwF + WPF: contradicted by its own table",
        )
        # One better row refutes the claim; it takes all rows to support it.
        if claim.holds is True and missing:
            unseen = f"{claim.evidence} Not measured: {', '.join(missing)}."
            return replace(claim, holds="not decidable", evidence=unseen)
        return claim

    def keeps_plasticity(self, right: str, measure: str, words: str, better: str) -> Claim:
        left = PLASTIC[-1]
        claim = Claim(
            claim=f"{method_label(left)} keeps more plasticity than {method_label(right)}",
            measure=f"{words}, second half of the order",
            paper="figure 3" if right == PLASTIC[0] else None,
        )
        shared = self._shared_block(left, right, FEWEST_ORDERS)
        if isinstance(shared, str):
            return replace(claim, evidence=shared)
        *both, seeds, orders = shared
        places = [(seed, order) for seed in seeds for order in orders]
        runs = [[by_order_place(of[place]).get(measure, []) for place in places] for of in both]
        values = np.array(runs, dtype=np.float64)  # [method, run, place]
        if values.ndim < 3 or values.shape[2] < 2 or not np.isfinite(values).all():
            return replace(claim, evidence=f"Not recorded: {measure}.")
        ours, theirs = values[:, :, -(values.shape[2] // 2) :].mean(axis=2)
        means = {left: float(ours.mean()), right: float(theirs.mean())}
        # runs that share an order are not independent of each other: one value per order
        by_order = (ours - theirs).reshape(len(seeds), len(orders)).mean(axis=0)
        difference = metrics.mean_interval(by_order)
        return decided(claim, means, difference, count(len(ours), "run"), better=better)

    def _shared_block(
        self, left: str, right: str, needed: int
    ) -> tuple[Cells, Cells, list[int], list[int]] | str:
        """The cells of both methods, their common seeds and orders; or why they are not judged."""
        if reason := unfit(self.summary, left, right):
            return reason
        ours, theirs = by_place(self.cells, left), by_place(self.cells, right)
        seeds, orders = complete_block(ours.keys() & theirs.keys())
        if len(orders) < needed:
            shared = count(len(orders), "order")
            return f"{left} and {right} share {shared}; a verdict needs {needed}."
        return ours, theirs, seeds, orders

    def _excluded(self, left: str, right: str, across: metrics.Difference) -> str:
        """Whether the measurements exclude an effect of the paper's size on other levels, too."""
        text = (
            f" With the level as a random effect, too: [{across.low:+.3f}, {across.high:+.3f}], "
            f"half-width {(across.high - across.low) / 2:.3f}"
        )
        table = published(self.summary.benchmark, self.summary.scenario)
        if not {left, right} <= table.keys():
            return f"{text}."
        effect = table[left][0] - table[right][0]
        seen = "is not excluded" if across.low <= effect <= across.high else "is excluded"
        return f"{text}; an effect of the paper's size, {effect:+.2f}, {seen}."

    def _in_the_paper(self, left: str, right: str, measure: Measure) -> str | None:
        table = published(self.summary.benchmark, self.summary.scenario)
        left, right = (name.replace("-tuned", "") for name in (left, right))
        if measure == "order_variance" or not {left, right} <= table.keys():
            return None
        ours, theirs = table[left], table[right]
        if measure == "variance":
            normalized = "" if self.summary.returns else " (normalized)"
            return f"{ours[1]:.3f} against {theirs[1]:.3f}{normalized}"
        if self.summary.returns:
            return f"{ours[0]:.2f} against {theirs[0]:.2f}"
        return f"{percent(ours[0])} % against {percent(theirs[0])} %"


def unfit(summary: Summary, *names: str) -> str | None:
    """The reason why these rows cannot be judged (one is missing or broke off), or None."""
    missing = [name for name in names if name not in summary.methods]
    if missing:
        return f"Not measured: {', '.join(missing)}."
    for name in names:
        entry = summary.methods[name]
        if entry.died:
            return (
                f"In {entry.died} of {entry.cells} cells of {name} no particle kept a finite "
                "loss: rows that broke off say nothing about the method."
            )
    return None
