"""What a run's tables are made of: columns, and names of rows and tables."""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from ..writing import MISSING, count, decimal, percent, small
from .paper import TABLE_1, benchmark_label, method_label
from .summary import MethodSummary, Summary

R = TypeVar("R")
ENOUGH_ORDERS = 6  # with fewer, a bootstrap interval over orders is their range by another name
# What each variance is over.
VARIED: dict[str, tuple[str, ...]] = {
    "variance": ("orders", "seeds"),
    "order_variance": ("orders",),
    "seed_variance": ("seeds",),
    "normalized_variance": ("orders", "seeds"),
    "normalized_order_variance": ("orders",),
}


def seen_variance(entry: MethodSummary, name: str) -> float | None:
    """A row's variance; None, and not 0, where what it is over did not vary."""
    varied = any(getattr(entry, what) > 1 for what in VARIED[name])
    return getattr(entry, name) if varied else None


# ---------------------------------------------------------------------- columns


class Column(NamedTuple, Generic[R]):
    """A column: what a row is worth in it and how that reads, for every form of a table.

    `kind`: "score" (a fraction), "return", "variance" or "number"; `better`: which end of it,
    "high" or "low"; `honour`: what its best row is called; `write`: for what is no single number.
    """

    heading: str
    value: Callable[[R], float | None]
    kind: str
    explanation: str
    better: str | None = None
    honour: str | None = None
    write: Callable[[R], str] | None = None

    def text(self, row: R, **writers: Callable[[float | None], str]) -> str:
        """The row's entry; `writers` replace those of their kind."""
        write = {**WRITERS, **writers}[self.kind]
        return write(self.value(row)) if self.write is None else self.write(row)


WRITERS: dict[str, Callable[[float | None], str]] = {
    "score": percent,
    "return": decimal,
    "variance": small,
    "number": lambda value: decimal(value, 1),
}
MIXED = "The average when the particles' {} are averaged before deciding."
SCORES = {  # heading -> (name, which end is better, explanation)
    "worst order": ("worst_order", "high", "The average under the order that suited it least."),
    "by logits": ("average_logits", "high", MIXED.format("outputs")),
    "by probs": ("average_probs", "high", MIXED.format("probabilities")),
    "by code": (
        "average_released",
        "high",
        "As the paper's released code scores each row: weighted particles by logits, others by "
        "accuracy.",
    ),
    "forgetting": ("forgetting", "low", "A task's best score ever minus its score at the end."),
}
VARIANCES = {  # heading -> (name, explanation)
    "seed variance": ("seed_variance", "Variance over seeds while the order is held fixed."),
    "total variance": ("variance", "Variance over orders and seeds together."),
    "norm. total": ("normalized_variance", "The total variance over the squared mean, by task."),
    "norm. order": ("normalized_order_variance", "The order variance over the squared mean."),
}
AVERAGE = (
    "Mean over tasks, orders and seeds after the last task. A filter's score is the weighted mean "
    "of its particles' own scores."
)
ORDER = "Variance over orders while the seed is held fixed: what order-sensitivity means."
STEADIEST = "lowest order variance"
ESS = "Effective sample size at the end: how many particles still count."


def all_columns(summary: Summary) -> list[Column[MethodSummary]]:
    """Every column, what matters most first."""
    score = "return" if summary.returns else "score"

    def value(name: str) -> Callable[[MethodSummary], float | None]:
        return lambda entry: getattr(entry, name)

    def variance(name: str) -> Callable[[MethodSummary], float | None]:
        return lambda entry: seen_variance(entry, name)

    return [
        Column("average", value("average"), score, AVERAGE, "high", "highest average"),
        Column("order variance", variance("order_variance"), "variance", ORDER, "low", STEADIEST),
        _interval_column(summary, score),
        *(Column(h, value(n), score, words, better) for h, (n, better, words) in SCORES.items()),
        *_clone_columns(summary),
        *(Column(h, variance(n), "variance", words, "low") for h, (n, words) in VARIANCES.items()),
        Column("ESS", value("ess_final"), "number", ESS),
        Column(
            "seeds x orders",
            lambda entry: entry.seeds * entry.orders,
            "number",
            "How many runs the row stands on.",
            write=lambda entry: f"{entry.seeds} x {entry.orders}",
        ),
    ]


def _clone_columns(summary: Summary) -> list[Column[MethodSummary]]:
    """What clones are worth beside the expert: at the end, and on the level just learned."""
    if summary.expert is None:
        return []
    share = "Share of the way from untrained networks (0) to the expert (100 %)"
    later = f"{share}, on each level right after it was learned."
    of_expert = summary.of_expert
    return [
        Column("of expert", lambda e: of_expert(e.average), "score", f"{share}.", "high"),
        Column("just learned", lambda e: of_expert(e.just_learned), "score", later, "high"),
    ]


def _interval_column(summary: Summary, score: str) -> Column[MethodSummary]:
    """A 95 % interval, or from few orders what they really tell: the lowest and the highest."""
    counts = {entry.orders for entry in summary.methods.values()}
    enough = min(counts) >= ENOUGH_ORDERS
    heading = f"range over {max(counts)} orders" if len(counts) == 1 else "range over orders"
    words = "The averages of the least and the most suitable order."

    def ends(entry: MethodSummary) -> list[float]:
        return entry.interval if enough else [min(entry.order_averages), max(entry.order_averages)]

    return Column(
        "95 % interval" if enough else heading,
        lambda e: ends(e)[0] if e.orders > 1 else None,
        score,
        "Bootstrap interval of the average over orders and seeds." if enough else words,
        write=lambda e: MISSING if e.orders < 2 else " to ".join(map(WRITERS[score], ends(e))),
    )


def columns_of(summary: Summary) -> list[Column[MethodSummary]]:
    """The columns that say something here: CSV and JSON hold everything."""
    columns, rows = all_columns(summary), summary.methods.values()
    idle = [c.heading for c in columns if all(c.text(entry) == MISSING for entry in rows)]
    if all(entry.seeds == 1 for entry in rows):  # then the total is that of the order
        idle += ["total variance", "norm. total"]
    if summary.returns:  # not made by averaging logits, and dividing by a mean near 0 is no measure
        idle += ["by logits", "norm. total", "norm. order"]
    return [column for column in columns if column.heading not in idle]


# ---------------------------------------------------------------------- names


def row_label(name: str, methods: Mapping[str, MethodSummary]) -> str:
    """A method's name, and how many orders it has where others have more."""
    label, orders = method_label(name), methods[name].orders
    if orders == max(entry.orders for entry in methods.values()):
        return label
    return f"{label} ({count(orders, 'order')})"


def title(summary: Summary) -> str:
    """One line that names the table."""
    parts = [benchmark_label(summary.benchmark), summary.scenario, summary.preset]
    return ", ".join([*parts, *learning_rate(summary), *departures(summary)])


# what a run may do otherwise than the preset `table1`: setting -> (its value there, in words)
TABLE1_VALUES: dict[str, tuple[object, str]] = {
    "network": ("mlp", "{} network"),
    "batch_size": (128, "batch {}"),
    "epochs": (1, "{} passes"),
    "loss_scale": (1.0, "loss times {:g}"),
    "augment": ("flip-crop", "plain images"),
}


def departures(summary: Summary) -> list[str]:
    """Where a run of one of Table 1's benchmarks is not as `table1` has it, in words.

    The presets `demo` and `strong` are other things altogether.
    """
    if summary.benchmark not in TABLE_1 or not summary.preset.startswith(("table1", "paper")):
        return []
    found = ((summary.settings.get(k, v), v, words) for k, (v, words) in TABLE1_VALUES.items())
    return [words.format(value) for value, usual, words in found if value != usual]


def learning_rate(summary: Summary) -> list[str]:
    """That of the optimizer in use, in words; nothing where methods have their own."""
    adam = summary.settings.get("optimizer") == "adam"
    rate = summary.settings.get("adam_lr" if adam else "lr")
    return [f"learning rate {rate:g}"] if isinstance(rate, int | float) else []
