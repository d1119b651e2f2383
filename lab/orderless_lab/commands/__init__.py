"""The lab's commands, one file each; `orderless` finds them by an entry point."""

from collections.abc import Callable

import typer

EXAMPLES = (
    "run splitmnist --preset demo",
    "report runs/splitmnist-demo",
    "tune splitmnist lr 1e-4,1e-3,1e-2",
    "settings ewc",
    "data fetch mnist",
    "expert train starpilot",
)


def add_commands(app: typer.Typer, add: Callable[..., None]) -> tuple[str, ...]:
    """Add the lab's commands to the application `orderless`."""
    from .data import data_app
    from .expert import expert_app
    from .options import problems_as_sentences
    from .report import report
    from .run import run
    from .settings import settings
    from .tune import tune

    add(problems_as_sentences("fewer --particles or --set chunk_size=K")(run))
    add(problems_as_sentences()(report))
    fewer = "--set particles=N with fewer of them, or --set chunk_size=K"
    add(problems_as_sentences(fewer)(tune))
    add(problems_as_sentences()(settings))
    app.add_typer(data_app, name="data")
    app.add_typer(expert_app, name="expert")
    return EXAMPLES
