"""The page "When does weighting help?", written from the map's JSON alone."""

import numpy as np
from docs.tools.sections import PROSE, Results, page, picture, table

from orderless.writing import markdown_table, percent, small
from orderless_lab.report import regime
from orderless_lab.report.paper import method_label
from orderless_lab.report.regime import COMBINES, Point, RegimeSummary, Scores
from orderless_lab.storage.typed import decode

TEXT = PROSE["regime"]
ALIVE = 2.0  # with an ESS below this, one particle has almost all the weight
PLACE = {
    "N": lambda point: str(point.n),
    "moved": lambda point: f"{point.moved:.2g}",
    "ESS": lambda point: f"{point.ess:.1f}",
}


def regime_page(results: Results) -> str | None:
    """From `when-weighting-helps.json`; None without it."""
    name = "when-weighting-helps.json"
    if (content := results.read(name)) is None:
        return None
    summary = decode(RegimeSummary, content)
    points = summary.points
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    about = {**summary.settings, **vars(summary), "versions": versions}
    words = TEXT["words"].format(**about, minutes=summary.duration / 60)
    parts = [
        "## Weighting and movement\n",
        _movement(points),
        picture(TEXT["caption"], (results.directory / name).with_suffix(".png")),
        *(_by_rate(points, init) for init in regime.inits(points)),
        "## Other weights, other ways to combine\n",
        _variants(points),
        "## Without a learning rate\n",
        _others(points),
        curvature(points),
    ]
    command = f"```\n{summary.command or 'command not recorded'}\n```"
    return page("When does weighting help?", f"{command}\n\n{words}", *parts, source=name)


def _movement(points: list[Point]) -> str:
    """The gains of the plain filter, as counts and extremes."""
    n = max(regime.sizes(points))
    found = regime.chosen(points, "wpf", n=n)
    counts, correlations = [], []
    for combine in ("accuracy", "probs"):
        up, down = _sides(found, "gain", combine)
        gain = [p.gains(combine)[0] for p in found]
        ends = found[int(np.argmax(gain))], found[int(np.argmin(gain))]
        best, worst = (_gain(point, combine) for point in ends)
        places = {"combine": combine, "n": n, "up": up, "down": down, "places": len(found)}
        counts.append(TEXT["judged"].format(best=best, worst=worst, **places) + "\n")
        # Spearman's, without a correction for ties
        ranks = [np.argsort(np.argsort(values)) for values in ([p.moved for p in found], gain)]
        value = np.corrcoef(*ranks)[0, 1] if len(found) > 1 else np.nan
        correlations.append(
            f"- Rank correlation of movement and gain by *{combine}*: {value:+.2f}.\n"
        )
    more, less = _sides(found, "order_gain", "accuracy")
    last = (
        f"- Order variance (*accuracy*): below gradient descent's in {less} of {len(found)} "
        f"places, above it in {more}.\n"
    )
    return "".join([*counts, *correlations, last])


def _sides(found: list[Point], what: str, combine: str) -> tuple[int, int]:
    """The numbers of points whose interval of `what` is wholly above 0, and wholly below it."""
    intervals = [gain[combine] for point in found if (gain := getattr(point, what))]
    return sum(low > 0 for _, low, _ in intervals), sum(high < 0 for _, _, high in intervals)


def _gain(point: Point, combine: str) -> str:
    value, where = 100 * point.gains(combine)[0], f"learning rate {point.rate:g}, {point.init}"
    return f"{value:+.1f} points at {where} (moved {point.moved:.2g}, ESS {point.ess:.1f})"


def _by_rate(points: list[Point], init: str) -> str:
    peers = {
        (p.method, p.rate, p.n): p
        for method in ("averaging", "gd", "adam")
        for p in regime.chosen(points, method, init=init)
    }

    def gain(point: Point) -> str:
        return "{:+.1f} ({:+.1f}, {:+.1f})".format(*(100 * g for g in point.gains("accuracy")))

    def probs(point: Point) -> str:
        both = point, peers["averaging", point.rate, point.n]
        return " / ".join(percent(each.probs.average) for each in both)

    columns = {
        "learning rate": lambda point: f"{point.rate:g}",
        **PLACE,
        "WPF": _score,
        "averaging": lambda point: _score(peers["averaging", point.rate, point.n]),
        "GD": lambda point: _score(peers["gd", point.rate, 1]),
        "Adam": lambda point: _score(peers["adam", point.rate, 1]),
        "gain over averaging (interval)": gain,
        "probs: WPF / averaging": probs,
    }
    words = "Accuracy in % (order variance, seed variance)."
    found = table(columns, regime.chosen(points, "wpf", init=init))
    return f"### Initialisation: {init}\n\n{words}\n\n{found}"


def _score(point: Point) -> str:
    average, *variances = vars(point.accuracy).values()
    return f"{percent(average)} ({', '.join(map(small, variances))})"


def _variants(points: list[Point]) -> str:
    """Which weights keep more than one particle and raise accuracy or lower order variance."""
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
    columns = {
        "method": lambda point: method_label(point.method),
        "sigma^2": lambda point: "-" if point.rate is None else f"{point.rate:g}",
        **PLACE,
        "accuracy": lambda point: percent(point.accuracy.average),
        "logits": lambda point: percent(point.logits.average),
        "probs": lambda point: percent(point.probs.average),
        "of order": lambda point: small(point.accuracy.order_variance),
        "of seed": lambda point: small(point.accuracy.seed_variance),
    }
    return table(columns, [*regime.chosen(points, "rb"), *regime.chosen(points, "gsf")])


def curvature(points: list[Point]) -> str:
    """The Gaussian-sum filter beside gradient descent that is at least as accurate."""
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
