"""All commands of `orderless`; each has a file of its own.

Other distributions add commands by an entry point of the group `orderless.commands`: a function
that is called with the Typer application and with `add`, and that returns examples for the help.

`options.py` defines the options, `errors.py` how errors are reported.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

import typer

from .. import __version__
from .audit import audit
from .doctor import doctor
from .errors import problems_as_sentences
from .fit import fit
from .merge import forget, merge
from .predict import predict
from .verify_deletion import verify_deletion

# In the order in which a new user needs them.
EXAMPLES = (
    "doctor",
    "fit --data photos --out head.safetensors",
    "predict head.safetensors --data photos",
    "merge north.safetensors south.safetensors --out both.safetensors",
    "forget head.safetensors --data user.csv --out after.safetensors",
    "verify-deletion after.safetensors retrained.safetensors",
    "audit my_module:make_learner --tasks my_module:tasks --out audit",
)
# commands of the lab: `orderless run` says what to install where they are missing
LAB = ("run", "report", "tune", "settings", "data", "expert")

app = typer.Typer(
    help="Learning whose result does not depend on the order of the data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # "rich" would take [what stands in brackets] for a style
)


def add(command: Callable[..., None], less_memory: str | None = None) -> None:
    """Add a command; `less_memory` is what to recommend when memory runs out."""
    advice = (less_memory,) if less_memory else ()
    app.command()(problems_as_sentences(*advice)(command))


def _missing(name: str) -> None:
    """A command of the lab where the lab is not installed."""

    def command() -> None:
        typer.echo(f"orderless: `{name}` needs the lab: pip install orderless-lab", err=True)
        raise typer.Exit(2)

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, hidden=True, context_settings=settings)(command)


add(doctor)
add(fit, "fewer --workers, a smaller --count or fewer --maps")
add(predict)
add(merge)
add(forget)
add(verify_deletion)
add(audit)
examples = list(EXAMPLES)
installed = sorted(entry_points(group="orderless.commands"), key=lambda entry: entry.name)
for entry in installed:
    examples += entry.load()(app, add)
app.info.epilog = "\n\n".join(["Examples:", *(f"- orderless {example}" for example in examples)])
if not installed:
    for name in LAB:
        _missing(name)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"orderless {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
