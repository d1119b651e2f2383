"""The report of a run directory: the table in five formats, the page, and the figures."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from orderless.io import write_atomically

from ..experiments.record import Run
from . import figures
from .collect import loaded, summarize
from .columns import title
from .density import load_frames
from .page import page_data, write_page
from .summary import ReportError, Summary
from .tables import Kind, format_tables

ENDINGS = ("txt", "md", "csv", "tex", "json")  # of the files of each `Kind`


def write_report(
    source: Run | str | Path,
    out: str | Path | None = None,
    read: Callable[[Path], object] | None = None,
    summaries: list[Summary] | None = None,
) -> list[Path]:
    """Write report.txt, .md, .csv, .tex, .json, .html and the figures as PNG; returns the paths.

    Args:
        source: a run directory, or a run from `load_run`; its `snapshots/*.st` are drawn.
        out: the output directory, created if necessary; by default the run directory.
        read: turns one cell file into plain JSON; the default reads what `orderless run` wrote.
        summaries: the result of `summarize`, if it is known already.

    A figure that cannot be drawn (matplotlib missing, a broken snapshot) causes a warning; the
    tables are written without it.
    """
    run = loaded(source, read)
    tables = summarize(run) if summaries is None else summaries
    folder = Path(run.directory if out is None else out)
    texts = {
        folder / f"report.{ending}": format_tables(tables, kind)
        for kind, ending in zip(get_args(Kind), ENDINGS, strict=True)
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_atomically(path, text.encode())
        frames, problems = load_frames(run.directory)
        page = page_data(run, tables, frames, problems)
        written = [*texts, write_page(page, folder)]
        problems = list(page.problems)
        try:
            for name, figure in figures.draw_all(run, tables, frames):
                written.append(figures.save(figure, folder / f"{name}.png"))
        except ReportError as error:
            problems.append(str(error))
    except OSError as error:
        raise ReportError(f"The report cannot be written to {folder}: {error}.") from error
    for problem in problems:
        warnings.warn(f"{title(tables[0])}: {problem}", stacklevel=2)
    return written
