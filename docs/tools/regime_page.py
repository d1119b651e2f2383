"""The page "When does weighting help?", written from the map's JSON and from nothing else."""

import json
from pathlib import Path

import numpy as np
from docs.tools.sections import PROSE, page

from orderless.report import regime
from orderless.report.paper import method_label
from orderless.report.regime import COMBINES, Point, RegimeSummary, Scores
from orderless.storage.typed import decode
from orderless.writing import markdown_table, percent, small

NAME = "when-weighting-helps"
TEXT = PROSE["regime"]
ALIVE = 2.0  # an ESS below this is one particle in all but name


def regime_page(directory: Path) -> str | None:
    """The page for `directory/when-weighting-helps.json`; None where there is no such file."""
    path = directory / f"{NAME}.json"
    if not path.exists():
        return None
    summary = decode(RegimeSummary, json.loads(path.read_text(encoding="utf-8")))
    points, picture = summary.points, path.with_suffix(".png")
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    about = {**summary.settings, **vars(summary), "versions": versions}
    words = TEXT["words"].format(**about, minutes=summary.duration / 60)
    parts = [
        "## Weighting and movement\n",
        _movement(points),
        *([f"![{TEXT['caption']}]({picture.name})\n"] if picture.exists() else []),
        *(_by_rate(points, init) for init in regime.inits(points)),
        "## Other weights, other ways to combine\n",
        _variants(points),
        "## Without a learning rate\n",
        _others(points),
    ]
    command = f"```\n{summary.command or 'command not recorded'}\n```"
    return page("When does weighting help?", f"{command}\n\n{words}", *parts, source=path.name)


def _movement(points: list[Point]) -> str:
    """What the plain filter does, in sentences made of counts and extremes."""
    n = max(regime.sizes(points))
    found = regime.chosen(points, "wpf", n=n)
    moved = np.array([p.moved for p in found])
    counts, correlations = [], []
    for combine in ("accuracy", "probs"):
        up, down = _sides(found, "gain", combine)
        gain = np.array([p.gains(combine)[0] for p in found])
        best, worst = found[int(gain.argmax())], found[int(gain.argmin())]
        gains = {"best": _gain(best, combine), "worst": _gain(worst, combine)}
        places = {"combine": combine, "n": n, "up": up, "down": down, "places": len(found)}
        counts.append(TEXT["judged"].format(**gains, **places) + "\n")
        correlations.append(
            f"- Rank correlation of movement and gain by *{combine}*: "
            f"{_rank_correlation(moved, gain):+.2f}.\n"
        )
    more, less = _sides(found, "order_gain", "accuracy")
    last = (
        f"- Order variance (*accuracy*): below gradient descent's in {less} of {len(found)} "
        f"places, above it in {more}.\n"
    )
    return "".join([*counts, *correlations, last])


def _sides(found: list[Point], what: str, combine: str) -> tuple[int, int]:
    """At how many points the interval of gain or order_gain is wholly above 0, and below it."""
    intervals = [getattr(point, what)[combine] for point in found]
    return sum(low > 0 for _, low, _ in intervals), sum(high < 0 for _, _, high in intervals)


def _gain(point: Point, combine: str) -> str:
    value = 100 * point.gains(combine)[0]
    return (
        f"{value:+.1f} points at learning rate {point.rate:g}, {point.init} (moved "
        f"{point.moved:.2g}, ESS {point.ess:.1f})"
    )


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's, without ties to speak of."""
    ranks = [values.argsort().argsort().astype(float) for values in (first, second)]
    if len(first) < 2:
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _by_rate(points: list[Point], init: str) -> str:
    single = {
        method: {p.rate: p for p in regime.chosen(points, method, init=init)}
        for method in ("gd", "adam")
    }
    rows = []
    for n in regime.sizes(points):
        weighted, plain = (regime.chosen(points, m, init=init, n=n) for m in ("wpf", "averaging"))
        for filter, averaging in zip(weighted, plain, strict=True):
            others = [by_rate[filter.rate] for by_rate in single.values()]
            value, low, high = (100 * number for number in filter.gains("accuracy"))
            rows.append(
                [
                    *(f"{filter.rate:g}", str(n), f"{filter.moved:.2g}", f"{filter.ess:.1f}"),
                    *map(_score, (filter, averaging, *others)),
                    f"{value:+.1f} ({low:+.1f}, {high:+.1f})",
                    f"{percent(filter.probs.average)} / {percent(averaging.probs.average)}",
                ]
            )
    headings = ["learning rate", "N", "moved", "ESS", "WPF", "averaging", "GD", "Adam"]
    headings += ["gain over averaging (interval)", "probs: WPF / averaging"]
    words = "Accuracy in % (order variance, seed variance)."
    return f"### Initialisation: {init}\n\n{words}\n\n{markdown_table(headings, rows)}"


def _score(point: Point) -> str:
    part = point.accuracy
    variances = f"{small(part.order_variance)}, {small(part.seed_variance)}"
    return f"{percent(part.average)} ({variances})"


def _variants(points: list[Point]) -> str:
    """Does any keep more than one particle alive and raise accuracy or lower order variance?"""
    n, rows = max(regime.sizes(points)), []
    better: dict[str, list[str]] = {"gain": [], "order_gain": []}
    for weighing in regime.weighings(points):
        words = weighing.words
        found = regime.chosen(points, "wpf", n=n, weighing=weighing)
        alive = [p for p in found if p.ess >= ALIVE]
        for combine in COMBINES:
            up, down = _sides(alive, "gain", combine)
            more, less = _sides(alive, "order_gain", combine)
            mean = np.mean([p.gains(combine)[0] for p in found])
            numbers = [str(len(alive)), f"{up} / {down}", f"{less} / {more}"]
            rows.append([words, combine, f"{100 * mean:+.1f}", *numbers])
            for measure, good, bad in (("gain", up, down), ("order_gain", less, more)):
                if good > bad:
                    better[measure].append(f"{words} by *{combine}* ({good} to {bad})")
    headings = ["weights", "combined by", "mean gain over averaging", f"ESS >= {ALIVE:g}"]
    headings += ["of these: more / less accurate than averaging"]
    headings += ["of these: order variance below / above GD's"]
    places = len(regime.chosen(points, "wpf", n=n))
    answers = {measure: ", ".join(names) or "none" for measure, names in better.items()}
    words = TEXT["variants"].format(places=places, n=n)
    told = TEXT["answers"].format(least=ALIVE, **answers)
    return f"{words}\n\n{markdown_table(headings, rows, left=2)}\n{told}\n"


def _others(points: list[Point]) -> str:
    rows = []
    for method in ("rb", "gsf"):
        for point in regime.chosen(points, method):
            rate = "-" if point.rate is None else f"{point.rate:g}"
            parts = [point.scores(combine) for combine in COMBINES]
            rows.append(
                [
                    method_label(method),
                    rate,
                    str(point.n),
                    f"{point.moved:.2g}",
                    f"{point.ess:.1f}",
                    *[percent(part.average) for part in parts],
                    small(parts[0].order_variance),
                    small(parts[0].seed_variance),
                ]
            )
    headings = ["method", "sigma^2", "N", "moved", "ESS", *COMBINES, "of order", "of seed"]
    return markdown_table(headings, rows) + "\n" + curvature(points)


def curvature(points: list[Point]) -> str:
    """Does the Gaussian-sum filter do better than gradient descent that is as accurate?"""
    descents, lines, steadier = regime.chosen(points, "gd"), [], 0
    best = max(descents, key=lambda p: p.accuracy.average)
    for point in regime.chosen(points, "gsf"):
        ours = point.accuracy
        peers = [p for p in descents if p.accuracy.average >= ours.average] or [best]
        peer = min(peers, key=lambda p: p.accuracy.order_variance)
        steadier += ours.order_variance < peer.accuracy.order_variance
        lines.append(
            f"- sigma^2 {point.rate:g}: {_steadiness(ours)}; gradient descent at learning rate "
            f"{peer.rate:g} ({peer.init}): {_steadiness(peer.accuracy)}.\n"
        )
    words = TEXT["curvature"].format(steadier=steadier, places=len(lines))
    return f"{words}\n\n{''.join(lines)}"


def _steadiness(part: Scores) -> str:
    return f"{percent(part.average)} %, order variance {small(part.order_variance)}"
