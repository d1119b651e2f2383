"""Writing a run directory's report: the table in five forms, the page, and the figures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from ..storage import write_atomically
from . import figures
from .cells import Cell, ReportError, load_cells
from .collect import summarize
from .curves_figure import figure3
from .page import write_page
from .tables import Kind, format_csv, format_json, format_table, title


def write_report(
    directory: str | Path,
    out: str | Path | None = None,
    read: Callable[[Path], Cell] | None = None,
) -> list[Path]:
    """Write report.txt, .md, .csv, .tex, .json, .html and the figures' PNGs; returns the paths.

    Args:
        directory: a run directory with ``cells/*.json`` and, for figure 1, ``snapshots/*.st``.
        out: where to write, created if need be; the run directory itself by default.
        read: reads one cell file; the default is plain JSON.

    A figure that cannot be drawn (matplotlib missing, a broken snapshot) is a warning: the tables
    stand without it.
    """
    summaries = summarize(directory, read)
    folder = Path(directory if out is None else out)

    def joined(kind: Kind) -> str:
        return "\n".join(format_table(summary, kind) for summary in summaries)

    texts = {
        "report.txt": joined("text"),
        "report.md": joined("markdown"),
        "report.csv": format_csv(summaries),
        "report.tex": joined("latex"),
        "report.json": format_json(summaries),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, text in texts.items():
            write_atomically(folder / name, text.encode())
            written.append(folder / name)
        written.append(write_page(Path(directory), folder, summaries, read))
        cells = load_cells(directory, read)
        return written + _write_figures(Path(directory), folder, summaries, cells)
    except OSError as error:
        raise ReportError(f"The report cannot be written to {folder}: {error}.") from error


def _write_figures(
    directory: Path, folder: Path, summaries: list[dict], cells: list[Cell]
) -> list[Path]:
    written = []
    try:
        if any(summary["score_kind"] == "accuracy" for summary in summaries):
            written.append(figures.save(figures.figure2(summaries), folder / "figure2.png"))
        curves = figure3(summaries, cells)
        if curves is not None:
            written.append(figures.save(curves, folder / "figure3.png"))
        written += figures.snapshot_figures(directory, folder)
    except ReportError as error:
        names = "; ".join(title(summary) for summary in summaries)
        warnings.warn(f"Some figures of {names} were not drawn: {error}", stacklevel=3)
    return written
