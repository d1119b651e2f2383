"""Table 2: our returns on the games of ProcGen beside the paper's; and a page of all figures."""

from pathlib import Path

from docs.tools.sections import PROSE, VERDICTS, Results, Source, folded, page, verdicts, work

from orderless.writing import decimal, markdown_table, small
from orderless_lab.methods.policy_settings import PolicySettings
from orderless_lab.report import MethodSummary, Summary
from orderless_lab.report.claims import PLASTIC, PLASTICITY
from orderless_lab.report.columns import columns_of, row_label, seen_variance
from orderless_lab.report.paper import TABLE_2, benchmark_label, method_label, published
from orderless_lab.report.summary import Claim

TEXT = PROSE["table2"]
FEW = 3  # levels whose figures fit in a row
NOT_SHOWN = ("worst order", "by probs", "forgetting", "seed variance", "total variance")
NOT_SHOWN += ("seeds x orders",)


def table2_page(results: Results) -> str | None:
    """The answer and one table for each benchmark; None without a report of them."""
    sources, by_benchmark = _own(results)
    parts = [_figures(sources)]
    for benchmark, summaries in by_benchmark.items():
        parts += [f"## {benchmark_label(benchmark)}\n", _overview(summaries)]
    remarks = results.remarks("table2")
    parts += [f"{TEXT['legend']}\n", remarks and f"## Remarks\n\n{remarks}\n"]
    answer = _answer([source.summary for source in sources])
    return page("Table 2, measured", answer, *parts) if sources else None


def table2_details(results: Results) -> str | None:
    """Every figure with its command, and the paper's claims one by one."""
    parts = []
    sources, by_benchmark = _own(results)
    for benchmark, judged in by_benchmark.items():
        decided = [s for s in judged if any(c.difference is not None for c in s.claims)]
        parts += [f"## {benchmark_label(benchmark)}\n", *map(_rows, judged)]
        parts.append(verdicts(decided, _name, _verdict, leave_out=["not decidable"]))
    summaries = [source.summary for source in sources]
    parts += [
        f"{TEXT['claims']}\n",
        _plasticity(summaries),
        folded("Level by level", _levels(summaries)),
        folded("How each table was made", "\n".join(map(_origin, sources))),
        folded("What moves the weights", _weights(summaries)),
    ]
    return page("Table 2: all figures", TEXT["words"], *parts) if sources else None


def _own(results: Results) -> tuple[list[Source], dict[str, list[Summary]]]:
    """The reports of the paper's Table 2, and their summaries by benchmark."""
    all_of = results.sources
    sources = [s for name in reversed(TABLE_2) for s in all_of if s.summary.benchmark == name]
    by_benchmark: dict[str, list[Summary]] = {}
    for summary in (source.summary for source in sources):
        by_benchmark.setdefault(summary.benchmark, []).append(summary)
    return sources, by_benchmark


def _overview(summaries: list[Summary]) -> str:
    """A column for every run; the first of a game has the paper's averages before it."""
    names = list(dict.fromkeys(name for summary in summaries for name in summary.methods))
    columns, games = [["method", *map(method_label, names)]], set()
    for summary in summaries:
        entries = [summary.methods.get(name) for name in names]
        if summary.scenario not in games:
            paper = published(summary.benchmark, summary.scenario)
            averages = (f"{paper[name][0]:.2f}" if name in paper else "" for name in names)
            columns.append([f"{summary.scenario.capitalize()}: paper", *averages])
            games.add(summary.scenario)
        orders = {entry.orders for entry in entries if entry}
        runs = "-".join(str(n) for n in sorted({min(orders), max(orders)}))
        columns.append([f"{_run(summary)} ({runs})", *(_brief(summary, e) for e in entries)])
    headings, *rows = (list(row) for row in zip(*columns, strict=True))
    return markdown_table(headings, rows)


def _brief(summary: Summary, entry: MethodSummary | None) -> str:
    """The average with its order variance; of clones with the share that they had just learned."""
    if entry is None:
        return ""
    learned = summary.of_expert(entry.just_learned)
    variance = seen_variance(entry, "order_variance") if learned is None else None
    notes = [f"{learned:.0%}"] if learned is not None else []
    notes += [small(variance)] if variance is not None else []
    if entry.died:
        whole = entry.died == entry.cells
        notes = ["broke off"] if whole else [*notes, f"{entry.died} of {entry.cells} broke off"]
    return decimal(entry.average) + (f" ({', '.join(notes)})" if notes else "")


def _name(summary: Summary) -> str:
    return f"{summary.scenario.capitalize()}, {_run(summary)}"


def _run(summary: Summary) -> str:
    """The number of levels, and the budget if it is not the usual one."""
    usual = PolicySettings().envs
    copies = summary.settings.get("envs", usual)
    what = f", {copies} copies" if copies != usual else ""
    if summary.benchmark == "procgen-bc":
        what = f", {_passes(summary)}"
    return f"{len(summary.task_names or [])} levels{what}"


def _answer(summaries: list[Summary]) -> str:
    """The result, point by point."""
    sentences = []
    for ours in ("PPO + WPF", "Behaviour cloning + WPF"):
        theirs = ours.removesuffix(" + WPF")
        claims = {
            summary.scenario.capitalize(): claim  # with most levels, where a game has several
            for summary in sorted(summaries, key=lambda s: len(s.task_names or []))
            for claim in summary.claims
            if claim.claim == f"{ours} is above {theirs}" and claim.across
        }
        if claims:
            sentences.append(_difference(claims, ours, theirs))
    points = [*sentences, *_kept(summaries), TEXT["zero"], TEXT["levels"]]
    return "\n".join(f"- {point}" for point in points) + f"\n\n{TEXT['front']}"


def _difference(claims: dict[str, Claim], ours: str, theirs: str) -> str:
    """The games with a difference, and those where one of the paper's size is excluded."""
    games, shown, excluded = [], [], []
    for game, claim in claims.items():
        low, high = claim.across or (0.0, 0.0)
        games.append(f"{game} {claim.difference:+.3f} [{low:+.3f}, {high:+.3f}]")
        shown += [] if low <= 0 <= high else [game]
        excluded += [game] if "is excluded" in claim.evidence else []
    return (
        f"**A difference between {ours} and {theirs} is shown on {_listed(shown, 'no game')}**: "
        f"{', '.join(games)} (95 % intervals with levels and orders as random effects); one of the "
        f"paper's size is excluded on {_listed(excluded, 'no game')}."
    )


def _kept(summaries: list[Summary]) -> list[str]:
    """Whether the claim of the paper's figure 3 holds."""
    judged, kept = 0, []
    for summary in summaries:
        verdict = {(claim.claim, claim.measure): claim.holds for claim in summary.claims}
        for claim in summary.claims:
            if claim.paper == "figure 3" and claim.holds != "not decidable":
                judged += 1
                if claim.holds:
                    other = verdict[f"{claim.claim} + averaging", claim.measure]
                    alone = "" if other else ", where particles without weights are no worse"
                    what = f"{claim.measure.partition(',')[0]} on {summary.scenario.capitalize()}"
                    kept.append(f"{what}: {claim.difference:+.3f}{alone}")
    more = f" ({_listed(kept)})" if kept else ""
    sentence = "That weighted particles keep more plasticity than PPO, the paper's figure 3,"
    answer = f"{sentence} **holds in {len(kept)} of {judged} comparisons**{more}."
    return [answer] if judged else []


def _listed(words: list[str], none: str = "") -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]).removeprefix(" and ") if words else none


def _figures(sources: list[Source]) -> str:
    """Figure 3 of each game, from the run with most levels."""
    by_levels = sorted(sources, key=lambda source: len(source.summary.task_names or []))
    pictures = {
        source.summary.scenario: path
        for source in by_levels
        if (path := Path(f"{source.path.with_suffix('')}-figure3.png")).exists()
    }
    lines = [f"![Returns over environment steps]({p.name})" for p in pictures.values()]
    return "\n".join([*lines, "", f"*{TEXT['caption']}*\n"]) if lines else ""


def _rows(summary: Summary) -> str:
    """One game: the paper's figures and ours, by level and by place in the order."""
    table = published(summary.benchmark, summary.scenario)
    columns = [c for c in columns_of(summary) if c.heading not in NOT_SHOWN]
    rows, few = [], len(summary.task_names or []) <= FEW
    for name, entry in summary.methods.items():
        paper = [f"{number:.2f}" for number in table[name]] if name in table else ["-", "-"]
        texts = [column.text(entry) for column in columns]
        if few:
            by_level = entry.task_averages, entry.place_averages
            texts += [" / ".join(map(decimal, each)) for each in by_level]
        rows.append([row_label(name, summary.methods), *paper, *texts])
    headings = ["method", "paper", "paper's variance", *(column.heading for column in columns)]
    headings += [f"levels {summary.settings['levels']}", "by place in the order"] if few else []
    notes = "".join(f"- {note}\n" for note in summary.notes if "One seed" not in note)
    budget = TEXT["cloned" if summary.benchmark == "procgen-bc" else "played"]
    budget = budget.format(passes=_passes(summary), **summary.settings)
    heading = f"### {_name(summary)}\n\n{budget}\n"
    return f"{heading}\n{markdown_table(headings, rows)}{notes and chr(10) + notes}"


def _levels(summaries: list[Summary]) -> str:
    """A table with a row per level, for runs with too many levels for a column each."""
    tables = []
    for summary in summaries:
        names, entries = summary.task_names or [], summary.methods.values()
        if len(names) > FEW:
            columns = names, *(map(decimal, entry.task_averages) for entry in entries)
            headings = [_name(summary), *map(method_label, summary.methods)]
            tables.append(markdown_table(headings, list(zip(*columns, strict=True))))
    return "\n".join(tables)


def _verdict(claim: Claim) -> str:
    if claim.difference is None or claim.interval is None:
        return VERDICTS[claim.holds]
    low, high = claim.interval
    text = f"{VERDICTS[claim.holds]} {claim.difference:+.3f} [{low:+.3f}, {high:+.3f}]"
    return text + ("; [{:+.3f}, {:+.3f}]".format(*claim.across) if claim.across else "")


def _plasticity(summaries: list[Summary]) -> str:
    rows = []
    for summary in (s for s in summaries if s.benchmark == "procgen-lifelong"):
        for measure, (words, _) in PLASTICITY.items():
            texts = [_by_place(summary.methods.get(name), measure) for name in PLASTIC]
            rows += [[_name(summary), words, *texts]] if any(texts) else []
    headings = ["game", "measure", *map(method_label, PLASTIC)]
    return f"{TEXT['places']}\n\n{markdown_table(headings, rows, left=2)}" if rows else ""


def _by_place(entry: MethodSummary | None, measure: str) -> str:
    if entry is None or measure not in entry.plasticity_half:
        return ""
    pairs = list(zip(entry.plasticity[measure], entry.plasticity_half[measure], strict=True))
    pairs = pairs if len(pairs) <= FEW else [pairs[0], pairs[len(pairs) // 2], pairs[-1]]
    return " / ".join(f"{mean:.3g} ± {half:.2g}" for mean, half in pairs)


def _weights(summaries: list[Summary]) -> str:
    """The spread of log-weights by term of the loss."""
    terms, rows = ("policy", "value", "entropy"), []
    for summary in summaries:
        for name, spread in ((n, e.weight_spread) for n, e in summary.methods.items()):
            texts = [" / ".join(map(small, spread.get(term, []))) or "-" for term in terms]
            rows += [[_name(summary), method_label(name), *texts]] if spread else []
    table = markdown_table(["game", "method", *(f"by {term}" for term in terms)], rows, left=2)
    return f"{TEXT['spread']}\n\n{table}" if rows else ""


def _passes(summary: Summary) -> str:
    passes = summary.settings["epochs"]
    return f"{passes} {'pass' if passes == 1 else 'passes'}"


def _origin(source: Source) -> str:
    """Command, device, time and versions; for clones also the expert."""
    summary = source.summary
    command = summary.command or "command not recorded"
    if summary.benchmark == "procgen-bc":  # the preset had a smaller budget in earlier versions
        for key in ("transitions", "epochs"):
            if f"{key}=" not in command:
                command += f" --set {key}={summary.settings[key]}"
    done = work(summary, f"{summary.duration / 60:.0f} min")
    return f"- [`{source.path.name}`]({source.path.name}): `{command}`; {done}{_expert(summary)}"


def _expert(summary: Summary) -> str:
    """The expert that is cloned, and its returns."""
    facts = summary.expert
    if facts is None:
        return ""
    worth = {
        f"{where}_{who}": f"{measured.mean:.3f} +- {measured.standard_error:.3f}"
        for where, both in facts.returns.items()
        for who, measured in both.items()
    }
    about = {"network": facts.network, "steps": facts.steps, "levels": facts.levels}
    on_levels = ", ".join(map(decimal, facts.level_returns))
    return " " + TEXT["expert"].format(on_levels=on_levels, **about, **worth)
