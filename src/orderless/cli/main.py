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

COMMANDS = (doctor, fit, predict, merge, forget, verify_deletion, audit)
# commands of the lab: `orderless run` says what to install where they are missing
LAB = ("run", "report", "tune", "settings", "data", "expert")
EXAMPLES = [
    str(command.__doc__).rpartition("Example: orderless ")[2].strip() for command in COMMANDS
]

app = typer.Typer(
    help="Learning whose result does not depend on the order of the data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # "rich" would take [what stands in brackets] for a style
)


def add(command: Callable[..., None]) -> None:
    """Add a command."""
    app.command()(problems_as_sentences()(command))


def _missing(name: str) -> None:
    """A command of the lab where the lab is not installed."""

    def command() -> None:
        install = "orderless-lab: pip install ./lab in a clone"
        typer.echo(f"orderless: `{name}` belongs to {install}", err=True)
        raise typer.Exit(2)

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, hidden=True, context_settings=settings)(command)


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


for command in COMMANDS:
    add(command)
examples = list(EXAMPLES)
installed = sorted(entry_points(group="orderless.commands"), key=lambda entry: entry.name)
for entry in installed:
    examples += entry.load()(app, add)
for name in () if installed else LAB:
    _missing(name)
app.info.epilog = "\n\n".join(["Examples:", *(f"- orderless {example}" for example in examples)])
