"""`orderless audit`: audit a user's learner on a user's tasks."""

import hashlib
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
    search: Annotated[int, option("Extra runs that search the worst order.")] = 0,
    rates: Annotated[
        str, option("Two learning rates: how fast the effect falls; make_learner takes lr=.")
    ] = "",
    keep: Annotated[
        Path | None,
        option("File of finished runs: the same command computes only what is missing.", **PATH),
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure how much the order of the tasks matters to your own learner, compared with the seed.

    Example: orderless audit my_module:make_learner --tasks my_module:tasks --keep audit.runs
    """
    from ..audit import order_sensitivity
    from .progress import Countdown

    make_learner = find_object(learner, "make_learner")
    try:
        with Countdown() as progress:
            result = order_sensitivity(
                make_learner,
                made_by(tasks, "tasks"),
                orders=orders,
                seeds=seeds,
                search=search,
                rates=_numbers(rates) if rates else (),
                name=learner.partition(":")[2],
                progress=progress.tell,
                keep=keep,
                key=_version_of(learner),
            )
    except KeyboardInterrupt as stopped:
        kept = "the same command resumes from what was saved"
        lost = "nothing was saved: with --keep FILE an audit can be resumed"
        stopped.args = (f"stopped; {lost if keep is None else kept}",)
        raise
    typer.echo(result.json() if json else result)


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
