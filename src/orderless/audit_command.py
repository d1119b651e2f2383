"""`orderless audit`: somebody's learner and tasks by name, the audit, and its report."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .audit import OrderSensitivity, order_sensitivity


def run_audit(
    learner: str,
    tasks: str,
    *,
    orders: int = 10,
    seeds: int = 3,
    compare: str = "wpf,rb",
    out: Path | None = None,
) -> tuple[OrderSensitivity, list[Path]]:
    """Audit `module:function` on `module:tasks`; returns the result and the files written.

    What stands for the tasks is a list of `ol.Task`, a `Scenario`, or a function that makes one.
    """
    make_learner = find_object(learner, "make_learner")
    given = find_object(tasks, "tasks")
    if callable(given):
        try:
            given = given()
        except Exception as error:
            raise ValueError(f"{tasks} failed: {type(error).__name__}: {error}") from error
    names = [name.strip() for name in compare.split(",") if name.strip()]
    _, _, name = learner.partition(":")
    with AuditProgress() as progress, _stoppable():
        result = order_sensitivity(
            make_learner,
            given,
            orders,
            seeds,
            compare=tuple(dict.fromkeys(names)),
            name=name,
            progress=progress.tell,
        )
    return result, [] if out is None else result.save(out)


@contextmanager
def _stoppable() -> Iterator[None]:
    """An audit keeps nothing until its end: what Ctrl-C stops begins anew."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("\norderless: stopped; nothing was written", err=True)
        raise typer.Exit(130) from None


def find_object(reference: str, what: str) -> Any:
    """What `module:name` stands for; modules in the current directory are found, too."""
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"{what} must be given as module:name, got {reference!r}")
    found: Any = _imported(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"module {module_name} has no {name!r}: is it spelled so there?")
        found = getattr(found, part)
    return found


def _imported(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise ValueError(
                f"there is no module {name!r} here: run from the folder that holds it, or install "
                "it; write my_module:name, not a file name"
            ) from None
        raise ValueError(f"module {name} needs {missing!r}, which is not installed") from error
    except Exception as error:
        text = f"module {name} cannot be imported: {type(error).__name__}: {error}"
        raise ValueError(text) from error


class AuditProgress:
    """A bar with the time left, or where there is no terminal a plain line now and then."""

    def __init__(self, every: float = 10.0) -> None:
        console = Console(stderr=True)
        self._plain = not console.is_terminal
        self._every = every
        self._begun = self._said = time.monotonic()
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=self._plain)
        self._task: Any = None

    def __enter__(self) -> AuditProgress:
        self._bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bar.stop()

    def tell(self, done: int, total: int, text: str) -> None:
        """Goes to `order_sensitivity` as its `progress`."""
        if self._task is None:
            self._task = self._bar.add_task(text, total=total)
        self._bar.update(self._task, completed=done, description=text)
        now = time.monotonic()
        if self._plain and 0 < done < total and now - self._said >= self._every:
            self._said = now
            seconds = round((now - self._begun) / done * (total - done))
            left = timedelta(seconds=seconds)
            print(f"[{done}/{total}] {text}, time left: {left}", file=sys.stderr, flush=True)
