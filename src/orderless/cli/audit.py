"""`orderless audit`: somebody's learner and tasks by name, the audit, and its report."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..methods.plugins import find_object, made_by
from . import completion, options
from .errors import problems_as_sentences
from .options import PATH, option, word


@problems_as_sentences()
def audit(
    learner: Annotated[str, word("module:make_learner, called with a seed.")],
    tasks: Annotated[str, option("module:tasks, a list of ol.Task or what makes one.")],
    orders: Annotated[int, option("Orders of the tasks; all where there are fewer.")] = 10,
    seeds: Annotated[int, option("Seeds.")] = 3,
    search: Annotated[int, option("Runs more that look for the worst and the best order.")] = 0,
    compare: Annotated[
        str, option("Run beside it: wpf, averaging, product, rb.", completion.comparisons)
    ] = "",
    out: Annotated[
        Path | None,
        option("Folder for report.html, .md, .json and the runs to go on from.", **PATH),
    ] = None,
    json: options.Json = False,
) -> None:
    """How much the order of the tasks matters to your own learner, beyond what reseeding does.

    With --out every finished run is kept: run the same command again and it does only what is
    missing.

    Example: orderless audit my_module:make_learner --tasks my_module:tasks --out audit
    """
    from ..audit import order_sensitivity
    from ..experiments.progress import Countdown
    from ..report.page import write_audit_page

    make_learner, given = find_object(learner, "make_learner"), made_by(tasks, "tasks")
    names = [name.strip() for name in compare.split(",") if name.strip()]
    with Countdown() as progress, _stoppable(out):
        result = order_sensitivity(
            make_learner,
            given,
            orders,
            seeds,
            search=search,
            compare=tuple(dict.fromkeys(names)),
            name=learner.partition(":")[2],
            progress=progress.tell,
            out=out,
            key=_version_of(learner),
        )
    paths = []
    if out is not None:
        paths = [write_audit_page(result, out, options.as_typed()), *result.save(out)]
    typer.echo(result.json() if json else result.text(), nl=not json)
    for path in paths:
        typer.echo(f"wrote {path}", err=json)


@contextmanager
def _stoppable(out: Path | None) -> Iterator[None]:
    """Without a folder an audit keeps nothing: what Ctrl-C stops begins anew."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            raise
        typer.echo(
            "\norderless: stopped; nothing was kept: with --out DIR the same command goes on "
            "where it stopped",
            err=True,
        )
        raise typer.Exit(130) from None


def _version_of(reference: str) -> str:
    """The learner's name and its module's text: runs of a changed module must not be mixed in.

    What that module imports is not looked at.
    """
    module, _, _ = reference.partition(":")
    path = getattr(sys.modules[module], "__file__", None)
    text = Path(path).read_bytes() if path and path.endswith(".py") else b""
    return f"{reference} {hashlib.sha256(text).hexdigest()}"
