"""The page of an audit, with the audited learners as its methods."""

import platform
from operator import attrgetter
from pathlib import Path

from orderless import metrics
from orderless.audit import LearnerAudit, OrderSensitivity
from orderless.audit.words import VERDICTS, comparison_note, findings, headline, probability, scale
from orderless_lab.storage import versions

from ..charts import Spot, method_styles
from ..columns import STEADIEST, Column
from ..summary import ReportError
from .charts import range_chart, scatter_charts
from .data import Page, Result, build_table, looks, rounded
from .render import write_page

# verdict -> CSS class, in the order in which the column sorts
KINDS = {
    "none": "holds",
    "not shown": "open",
    "undecided": "open",
    "below reseeding": "open",
    "sensitive": "fails",
}


def write_audit_page(result: OrderSensitivity, folder: Path | str, command: str = "") -> Path:
    """Write `folder/report.html`, with the folder if necessary; returns its path."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return write_page(audit_page(result, Path(folder), command), Path(folder))


def audit_page(audit: OrderSensitivity, folder: Path, command: str = "") -> Page:
    """The page of an audit; without matplotlib it has no charts, and `problems` says why."""
    learners = {each.name: each for each in audit.learners}
    orders, runs = audit.orders, audit.seeds * len(audit.orders)
    normalized = all(each.scores.mean(axis=(0, 1)).all() for each in audit.learners)
    styles = method_styles(learners)
    broken = {name: (each.broken_runs, runs) for name, each in learners.items()}
    result = Result(
        benchmark=f"Order sensitivity of {audit.learner.name}",
        subtitle=f"{len(audit.tasks)} tasks, {len(orders)} orders x {audit.seeds} seeds",
        headline=headline(audit),
        score=audit.score,
        tasks=list(audit.tasks),
        orders={str(index): list(order) for index, order in enumerate(orders)},
        pair=[audit.learners[0].name, audit.learners[-1].name],
        methods=looks(styles),
        table=build_table(
            COLUMNS, learners, broken, [n for n, e in learners.items() if not e.broken_runs]
        ),
        matrices={
            name: {str(o): rounded(m) for o, m in enumerate(each.matrices.mean(axis=0))}
            for name, each in learners.items()
        },
        findings=[
            {
                "method": name,
                "verdict": f"{name}: {VERDICTS[each.verdict]}",
                "kind": KINDS[each.verdict],
                "sentences": findings(audit, each),
            }
            for name, each in learners.items()
        ],
        notes=list(filter(None, [scale(audit), comparison_note(audit)])),
        command=command or None,
        device=platform.machine(),
        versions=versions(),
        duration=sum(each.seconds for each in audit.learners),
        cells=runs * len(learners),
        dots=normalized,
    )
    try:
        spots = [audit_spot(each, normalized) for each in audit.learners]
        charts = range_chart(audit, styles)
        charts |= scatter_charts(spots, styles, audit.score, normalized=normalized)
        problems = []
    except ReportError as error:
        charts, problems = {}, [str(error)]
    return Page(str(folder), [result], [charts], problems)


def audit_spot(learner: LearnerAudit, normalized: bool) -> Spot:
    """The average and variances of a learner, and the contributions of its orders."""
    name, scores = learner.name, learner.scores
    average = metrics.average(scores)
    if not normalized:
        return Spot(name, average, metrics.variance(scores), metrics.order_variance(scores))
    total, order = (metrics.order_contributions(scores, within_seed=w) for w in (False, True))
    rows = zip(metrics.order_averages(scores).tolist(), total.tolist(), order.tolist(), strict=True)
    dots = tuple(Spot(str(index), *row) for index, row in enumerate(rows))
    return Spot(name, average, float(total.mean()), float(order.mean()), dots)


MATTERS = (
    "yes: significant, and more than the seed. less than seed: significant, but the seed matters "
    "as much. not shown: not significant. not at all: every order gave the same bits. undecided: "
    "too few runs to tell."
)
AVERAGE = "Mean score over tasks, orders and seeds after the last task."
WORST = "The lowest average of an order."
ORDER = "Variance over orders with a fixed seed: order effect + interaction."
SEED = "Variance over seeds in a fixed order: seed effect + interaction."
TEST = "Permutation test of “the order has no effect”: order labels shuffled within each seed."
DISAGREE = "Share of test samples on which two orders, on average, predict different labels."
PARTS = {
    "total variance": ("variance", "The sum of the next three columns."),
    "order effect": ("order_effect", "Variance of the order's effect that all seeds share."),
    "seed effect": ("seed_effect", "Variance of the seed's effect that all orders share."),
    "interaction": ("interaction", "Variance of the effects of single orders with single seeds."),
}
COLUMNS: list[Column[LearnerAudit]] = [
    Column(
        "order matters",
        lambda e: list(KINDS).index(e.verdict),
        "number",
        MATTERS,
        write=lambda e: VERDICTS[e.verdict],
    ),
    Column("order variance", attrgetter("order_variance"), "variance", ORDER, "low", STEADIEST),
    Column("average", attrgetter("parts.average"), "score", AVERAGE, "high", "highest average"),
    Column("worst order", lambda e: float(e.order_averages.min()), "score", WORST, "high"),
    Column("p", attrgetter("p_value"), "number", TEST, write=lambda e: probability(e.p_value)),
    Column("seed variance", attrgetter("seed_variance"), "variance", SEED, "low"),
    *(
        Column(h, attrgetter(f"parts.{name}"), "variance", words, "low")
        for h, (name, words) in PARTS.items()
    ),
    Column("disagreement", attrgetter("mean_disagreement"), "score", DISAGREE, "low"),
]
