"""`orderless audit`: audit a user's learner on a user's tasks, and write the report."""

import hashlib
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from . import options
from .options import PATH, option, word
from .references import find_object, made_by


def audit(
    learner: Annotated[str, word("module:make_learner, a function from a seed to a learner.")],
    tasks: Annotated[str, option("module:tasks, a list of ol.Task or a function.")],
    orders: Annotated[int, option("Orders of the tasks (at most all).")] = 10,
    seeds: Annotated[int, option("Seeds.")] = 3,
    search: Annotated[int, option("Extra runs that search the worst and best order.")] = 0,
    compare: Annotated[str, option("module:name,... other learners, to run beside it.")] = "",
    rates: Annotated[
        str, option("Two learning rates: how fast the effect falls; make_learner takes lr=.")
    ] = "",
    out: Annotated[
        Path | None,
        option("Folder for report.html and .json, and for the finished runs.", **PATH),
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure how much the order of the tasks matters to your own learner, compared with the seed.

    With --out every finished run is saved, and the same command computes only what is missing.

    Example: orderless audit my_module:make_learner --tasks my_module:tasks --out audit
    """
    from ..audit import order_sensitivity
    from .progress import Countdown

    make_learner = find_object(learner, "make_learner")
    given = made_by(tasks, "tasks")
    others = [name.strip() for name in compare.split(",") if name.strip()]
    try:
        with Countdown() as progress:
            result = order_sensitivity(
                make_learner,
                given,
                orders=orders,
                seeds=seeds,
                search=search,
                compare={_name(other): find_object(other, "compare") for other in others},
                rates=_numbers(rates) if rates else None,
                name=_name(learner),
                progress=progress.tell,
                out=out,
                key=_version_of(learner),
            )
    except KeyboardInterrupt as stopped:
        kept = "the same command resumes from what was saved"
        lost = "nothing was saved: with --out DIR an audit can be resumed"
        stopped.args = (f"stopped; {lost if out is None else kept}",)
        raise
    except ValueError as error:  # of what was asked; the learner's own are a LearnerError
        raise UserError(str(error)) from error
    paths = [] if out is None else result.save(out, shlex.join(["orderless", *sys.argv[1:]]))
    typer.echo(result.json() if json else result.text(), nl=not json)
    for path in paths:
        typer.echo(f"wrote {path}", err=json)


def _name(reference: str) -> str:
    return reference.partition(":")[2]


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"rates must be two numbers such as 0.1,0.05, got {text!r}") from None


def _version_of(reference: str) -> str:
    """The learner's name and a hash of its module's text, so that a changed module is noticed.

    Changes in modules that it imports are not noticed.
    """
    module, _, _ = reference.partition(":")
    path = getattr(sys.modules[module], "__file__", None)
    text = Path(path).read_bytes() if path and path.endswith(".py") else b""
    return f"{reference} {hashlib.sha256(text).hexdigest()}"
