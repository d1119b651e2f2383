"""The columns of a run's tables, and the names of rows and tables."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from orderless.text import MISSING, percent, small

from ..paper import TABLE_1, benchmark_label, method_label
from ..text import count, decimal
from .summary import MethodSummary, Summary

R = TypeVar("R")
ENOUGH_ORDERS = 6  # with fewer, an interval over orders is so wide that their range tells more
# variance -> over what it is taken
VARIED: dict[str, tuple[str, ...]] = {
    "variance": ("orders", "seeds"),
    "order_variance": ("orders",),
    "seed_variance": ("seeds",),
    "normalized_variance": ("orders", "seeds"),
    "normalized_order_variance": ("orders",),
}


def seen_variance(entry: MethodSummary, name: str) -> float | None:
    """A variance of a row; None, and not 0, if it is over a single order or seed."""
    varied = any(getattr(entry, what) > 1 for what in VARIED[name])
    return getattr(entry, name) if varied else None


class Column(NamedTuple, Generic[R]):
    """A column of a table in any format: the value of a row and its text."""

    heading: str
    value: Callable[[R], float | None]
    kind: str  # a key of `WRITERS`; a "score" is a fraction
    explanation: str
    better: str | None = None  # "high" or "low"
    honour: str | None = None  # a label for the best row
    write: Callable[[R], str] | None = None  # for entries that are not a single number

    def text(self, row: R, **writers: Callable[[float | None], str]) -> str:
        """The row's entry; `writers` replace those of `WRITERS` by kind."""
        write = {**WRITERS, **writers}[self.kind]
        return write(self.value(row)) if self.write is None else self.write(row)


WRITERS: dict[str, Callable[[float | None], str]] = {
    "score": percent,
    "return": decimal,
    "variance": small,
    "number": lambda value: decimal(value, 1),
}
MIXED = "Accuracy of the weighted mean of the particles' {}."
SCORES = {  # heading -> (name, better, explanation)
    "worst order": ("worst_order", "high", "The lowest average of an order."),
    "by logits": ("average_logits", "high", MIXED.format("outputs")),
    "by probs": ("average_probs", "high", MIXED.format("probabilities")),
    "by code": (
        "average_released",
        "high",
        "As the paper's released code scores each row: weighted particles by logits, others by "
        "accuracy.",
    ),
    "forgetting": ("forgetting", "low", "The best score on a task minus its score at the end."),
}
VARIANCES = {  # heading -> (name, explanation)
    "seed variance": ("seed_variance", "Variance over seeds in a fixed order."),
    "total variance": ("variance", "Variance over orders and seeds together."),
    "norm. total": ("normalized_variance", "Total variance divided by the squared mean, by task."),
    "norm. order": ("normalized_order_variance", "Order variance divided by the squared mean."),
}
AVERAGE = (
    "Mean over tasks, orders and seeds after the last task. The score of a filter is the weighted "
    "mean of its particles' scores."
)
ORDER = "Variance over orders with a fixed seed: the order sensitivity."
STEADIEST = "lowest order variance"
ESS = "Effective sample size of the weights at the end."


def all_columns(summary: Summary) -> list[Column[MethodSummary]]:
    """All columns, the most important first."""
    score = "return" if summary.returns else "score"
    of_order = partial(seen_variance, name="order_variance")
    return [
        Column("average", attrgetter("average"), score, AVERAGE, "high", "highest average"),
        Column("order variance", of_order, "variance", ORDER, "low", STEADIEST),
        _interval_column(summary, score),
        *(Column(h, attrgetter(n), score, text, better) for h, (n, better, text) in SCORES.items()),
        *_clone_columns(summary),
        *(
            Column(h, partial(seen_variance, name=n), "variance", text, "low")
            for h, (n, text) in VARIANCES.items()
        ),
        Column("ESS", attrgetter("ess_final"), "number", ESS),
        Column(
            "seeds x orders",
            lambda entry: entry.seeds * entry.orders,
            "number",
            "Number of runs of the row.",
            write=lambda entry: f"{entry.seeds} x {entry.orders}",
        ),
    ]


def _clone_columns(summary: Summary) -> list[Column[MethodSummary]]:
    """The returns of clones relative to the expert: at the end, and on the level just learned."""
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
    """A 95 % interval, or with few orders their lowest and highest average."""
    counts = {entry.orders for entry in summary.methods.values()}
    enough = min(counts) >= ENOUGH_ORDERS
    heading = f"range over {max(counts)} orders" if len(counts) == 1 else "range over orders"
    words = "The lowest and the highest average of an order."

    def ends(entry: MethodSummary) -> list[float]:
        return entry.interval if enough else [min(entry.order_averages), max(entry.order_averages)]

    return Column(
        "95 % interval" if enough else heading,
        lambda e: ends(e)[0] if e.orders > 1 else None,
        score,
        "Interval of the average for other orders and seeds." if enough else words,
        write=lambda e: MISSING if e.orders < 2 else " to ".join(map(WRITERS[score], ends(e))),
    )


def columns_of(summary: Summary) -> list[Column[MethodSummary]]:
    """The columns without those that are empty or redundant here; CSV and JSON hold all values."""
    columns, rows = all_columns(summary), summary.methods.values()
    idle = [c.heading for c in columns if all(c.text(entry) == MISSING for entry in rows)]
    if all(entry.seeds == 1 for entry in rows):  # then the total variance is the order variance
        idle += ["total variance", "norm. total"]
    if summary.returns:  # made without averaging logits; their mean may be near 0
        idle += ["by logits", "norm. total", "norm. order"]
    return [column for column in columns if column.heading not in idle]


def row_label(name: str, methods: Mapping[str, MethodSummary]) -> str:
    """The name of a method, with its number of orders if others have more."""
    label, orders = method_label(name), methods[name].orders
    if orders == max(entry.orders for entry in methods.values()):
        return label
    return f"{label} ({count(orders, 'order')})"


def title(summary: Summary) -> str:
    """The title of the table in one line."""
    parts = [benchmark_label(summary.benchmark), summary.scenario, summary.preset]
    return ", ".join([*parts, *learning_rate(summary), *departures(summary)])


# settings in which runs differ from the preset `table1`: setting -> (its value there, in words)
TABLE1_VALUES: dict[str, tuple[object, str]] = {
    "network": ("mlp", "{} network"),
    "batch_size": (128, "batch {}"),
    "epochs": (1, "{} passes"),
    "loss_scale": (1.0, "loss times {:g}"),
    "schedule": ("constant", "falling as {}"),
    "augment": ("flip-crop", "plain images"),
}


def departures(summary: Summary) -> list[str]:
    """How a run of Table 1's benchmarks, other than `demo` and `strong`, differs from `table1`."""
    if summary.benchmark not in TABLE_1 or not summary.preset.startswith(("table1", "paper")):
        return []
    found = ((summary.settings.get(k, v), v, words) for k, (v, words) in TABLE1_VALUES.items())
    return [words.format(value) for value, usual, words in found if value != usual]


def learning_rate(summary: Summary) -> list[str]:
    """The learning rate of the optimizer, in words; empty if methods differ in it."""
    adam = summary.settings.get("optimizer") == "adam"
    rate = summary.settings.get("adam_lr" if adam else "lr")
    return [f"learning rate {rate:g}"] if isinstance(rate, int | float) else []
