"""All commands of `orderless`; each has a file of its own.

`options.py` defines the options, `completion.py` what the shell offers for them, and `errors.py`
how errors are reported.
"""

from typing import Annotated

import typer

from .. import __version__
from .audit import audit
from .data import data_app
from .doctor import doctor
from .errors import problems_as_sentences
from .expert import expert_app
from .fit import fit
from .predict import predict
from .report import report
from .run import run
from .settings import settings
from .tune import tune
from .verify_deletion import verify_deletion

# In the order in which a new user needs them.
EXAMPLES = (
    "doctor",
    "run splitmnist --preset demo",
    "report runs/splitmnist-demo",
    "audit my_module:make_learner --tasks my_module:tasks --out audit",
    "fit --data photos --out head.safetensors",
    "predict head.safetensors --data photos",
    "verify-deletion after.safetensors retrained.safetensors",
    "tune splitmnist lr 1e-4,1e-3,1e-2",
    "settings ewc",
    "data fetch mnist",
    "expert train starpilot",
)

app = typer.Typer(
    help="Learning whose result does not depend on the order of the data.",
    epilog="\n\n".join(["Examples:", *(f"- orderless {example}" for example in EXAMPLES)]),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # "rich" would take [what stands in brackets] for a style
)
LESS_MEMORY = {  # what to recommend when memory runs out
    run: "fewer --particles or --set chunk_size=K",
    tune: "--set particles=N with fewer of them, or --set chunk_size=K",
    fit: "fewer --workers, a smaller --count or fewer --maps",
    predict: "smaller files",
}
for command in (doctor, run, report, tune, settings, audit, fit, predict, verify_deletion):
    advice = (LESS_MEMORY[command],) if command in LESS_MEMORY else ()
    app.command()(problems_as_sentences(*advice)(command))
app.add_typer(data_app, name="data")
app.add_typer(expert_app, name="expert")


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
