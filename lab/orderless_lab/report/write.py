"""The report of runs as files: the table in five formats, the page, and the figures."""

import warnings
from pathlib import Path

from orderless.io import write_atomically

from .figures import drawn, plain, png
from .frame import ReportError, Run, load
from .page import render
from .particles import figure1, read_snapshots
from .summary import Summary, summarize
from .tables import Kind, format_table, title

ENDINGS: dict[str, Kind] = {
    "txt": "text",
    "md": "markdown",
    "csv": "csv",
    "tex": "latex",
    "json": "json",
}


def write_report(
    *sources: Run | str | Path,
    out: str | Path | None = None,
    summaries: list[Summary] | None = None,
) -> list[Path]:
    """Write report.txt, .md, .csv, .tex, .json, .html and the figures as PNG; returns the paths.

    Args:
        sources: run directories, or runs from `load`; the particles in their `snapshots/*.st` are
            drawn. A file that cannot be drawn causes a warning.
        out: the output directory, created if necessary; by default the first run's.
        summaries: the result of `summarize`, if it is known already.
    """
    runs = [load(source) for source in sources]
    found = summarize(*runs) if summaries is None else summaries
    folder = Path(runs[0].directory if out is None else out)
    contents = {
        f"report.{ending}": format_table(found, kind).encode() for ending, kind in ENDINGS.items()
    }
    contents["report.html"] = render(found).encode()
    for place, summary in enumerate(found, start=1):
        which = f"-{place}" if len(found) > 1 else ""
        for name, figure in drawn(summary.table, summary.numbers):
            figure.suptitle(plain(title(summary.table)), fontsize=9)
            contents[f"{name}{which}.png"] = png(figure)
    for run in runs:
        for path in sorted((run.directory / "snapshots").glob("*.st")):
            try:
                figure = figure1(path.stem, *read_snapshots(path))
            except ReportError as error:  # the report is written without this figure
                warnings.warn(f"The particles of {path.name} are not drawn: {error}", stacklevel=2)
            else:
                contents[f"figure1-{path.stem}.png"] = png(figure)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            if (folder / name).is_symlink():  # replaced, never followed
                (folder / name).unlink()
            write_atomically(folder / name, content)
    except OSError as error:
        raise ReportError(f"The report cannot be written to {folder}: {error}.") from error
    return [folder / name for name in contents]
