"""What the result pages have in common: where figures came from, remarks, and claims judged."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from orderless.report import Summary
from orderless.report.tables import markdown_table, title

COMMAND = "python -m docs.tools.results_page"
VERDICTS = {True: "**yes**", False: "**no**", "not decidable": "undecided"}


class Source(NamedTuple):
    """One summary and the file it came from."""

    path: Path
    summary: Summary


def remarks(source: Source, name: str) -> list[str]:
    """What somebody wrote beside the JSON, as a section of its own."""
    path = source.path.with_name(name)
    text = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    return [f"## Remarks\n\n{text}\n"] if text else []


def provenance(source: Source) -> str:
    """Command, device, time and versions of one report."""
    summary = source.summary
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    hours = summary.duration / 3600
    time = f"{hours:.1f} h" if hours >= 1 else f"{summary.duration / 60:.1f} min"
    cells = sum(entry.cells for entry in summary.methods.values())
    return (
        f"```\n{summary.command or 'command not recorded'}\n```\n\n"
        f"{cells} {'cell' if cells == 1 else 'cells'}, {time} of cell time on "
        f"{summary.device or 'an unnamed device'}; {versions or 'versions not recorded'}. "
        f"Data: [`{source.path.name}`]({source.path.name}).\n"
    )


def claims_section(groups: list[list[Summary]], rule: str) -> str:
    """First where each claim holds, a table for each group; then the numbers behind it all."""
    parts = ["## The paper's claims, one by one\n", rule]
    groups = [[summary for summary in group if summary.claims] for group in groups]
    parts += [_overview(group) for group in groups if group]
    judged = [summary for group in groups for summary in group]
    for summary in judged:
        rows = [
            [
                claim.claim,
                claim.measure,
                VERDICTS[claim.holds],
                claim.evidence,
                claim.paper or "",
            ]
            for claim in summary.claims
        ]
        parts.append(f"### Evidence: {title(summary)}\n")
        parts.append(
            markdown_table(["claim", "judged on", "holds", "evidence", "paper"], rows, left=5)
        )
    return "\n".join(parts)


def _overview(judged: list[Summary]) -> str:
    """The verdicts on every claim that any of these was judged on."""
    keys = list(dict.fromkeys((c.claim, c.measure) for summary in judged for c in summary.claims))
    verdicts = {
        (place, claim.claim, claim.measure): VERDICTS[claim.holds]
        for place, summary in enumerate(judged)
        for claim in summary.claims
    }
    return markdown_table(
        ["claim", "judged on", *(title(summary) for summary in judged)],
        [
            [claim, measure, *(verdicts.get((i, claim, measure), "") for i in range(len(judged)))]
            for claim, measure in keys
        ],
        left=2,
    )
