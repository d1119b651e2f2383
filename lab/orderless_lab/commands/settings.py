"""`orderless settings`: list the settings with their defaults."""

import textwrap
from collections.abc import Iterable
from typing import Annotated

import typer

from orderless.cli.options import word
from orderless.errors import UserError, did_you_mean

from ..methods.settings import RunSettings
from . import completion, options

What = Annotated[
    str | None,
    word("A method, a benchmark or a preset [all settings].", autocompletion=completion.explained),
]


def settings(what: What = None, plugin: options.Plugin = None) -> None:
    """List the settings that --set changes, with defaults and meaning.

    For a method: those that it reads. For a benchmark: those of all its methods. For a preset: its
    values, by benchmark.

    Example: orderless settings ewc
    """
    from ..methods import METHODS
    from ..methods.registry import load_plugins
    from ..suites.registry import SUITES

    load_plugins(plugin or ())
    named = {name: suite for name, suite in SUITES.items() if what in (None, name)}
    presets = [suite for suite in SUITES.values() if what in suite.presets(suite.variants[0])]
    if what in METHODS:
        found = METHODS[what]
        typer.echo(f"{what}: {found.description}\n")
        suite = next(suite for suite in SUITES.values() if what in suite.family)
        default = suite.settings()
        show(default, default.read_by(found))
    elif named:
        for name, suite in named.items():
            typer.echo(f"{name}: {suite.description}\n")
            show(suite.settings(), suite.settings.known())
    elif presets:
        for suite in presets:
            preset = suite.preset(what)
            count = f"{preset.orders} orders, {preset.seeds} seeds"
            typer.echo(f"Preset {what} of {suite.name}: {count}\n")
            show(preset.settings, suite.settings.known())
    else:
        names = [*METHODS, *SUITES, *completion.presets("")]
        known = ", ".join(dict.fromkeys(names))
        hint = did_you_mean(str(what), names)
        raise UserError(
            f"no method, benchmark or preset is called {what!r}{hint}: choose from {known}"
        )


def show(values: RunSettings, keys: Iterable[str]) -> None:
    """Print these settings, each with its sentence."""
    flat = values.flat()
    known = values.known()
    for key in keys:
        typer.echo(f"  {key}={flat[key]}")
        typer.echo(textwrap.indent(known[key].description or "", " " * 6))
    typer.echo("")
