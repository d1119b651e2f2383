"""`orderless settings`: list the settings with their defaults."""

import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from orderless.cli.options import word

from ..experiments.benchmarks import BENCHMARKS
from ..methods import METHODS
from ..methods.config import allowed, sentences
from ..methods.plugins import load_plugins
from ..methods.policy_settings import PolicySettings
from ..methods.presets import POLICY_PRESETS, PRESETS, RATES, find_policy_preset, find_preset
from ..methods.settings import Settings, SharedSettings
from ..rl.games import GAMES
from . import completion, options

SAID = "A method, a benchmark or a preset [all settings]."
What = Annotated[str | None, word(SAID, completion.one_of(*METHODS, *BENCHMARKS, *PRESETS))]
# title, configurations, values, and the values of benchmarks or games that have their own
Section = tuple[str, list[type[Any]], SharedSettings, dict[str, SharedSettings]]


def settings(what: What = None, plugin: options.Plugin = None) -> None:
    """List the settings that --set changes, with defaults and meaning.

    For a method: those that it reads. For a benchmark: those of all its methods. For a preset: its
    values.

    Example: orderless settings ewc
    """
    load_plugins(plugin or ())
    found = list(_sections(what))
    if not found:
        known = ", ".join(dict.fromkeys([*METHODS, *BENCHMARKS, *PRESETS, *POLICY_PRESETS]))
        raise ValueError(f"no method, benchmark or preset is called {what!r}: choose from {known}")
    for title, parts, shared, others in found:
        typer.echo(f"{title}\n")
        values, special = shared.flat(), {name: other.flat() for name, other in others.items()}
        for part in parts or [type(shared), *shared.configs()]:
            said = sentences(part)
            for key in allowed(part):
                if key == "own":
                    continue
                own = {name: each[key] for name, each in special.items()}
                own = own if any(value != values[key] for value in own.values()) else {}
                beside = "; ".join(f"{name}: {value}" for name, value in own.items())
                typer.echo(f"  {key}={values[key]}" + f" ({beside})" * bool(beside))
                typer.echo(textwrap.indent(said.get(key, ""), " " * 6))
        typer.echo("")


def _sections(what: str | None) -> Iterator[Section]:
    """The sections to print; an empty list of configurations means all of them."""
    both: dict[str, SharedSettings] = {"supervised": Settings(), "ProcGen": PolicySettings()}
    if what is None:
        for name, shared in both.items():
            yield f"Benchmarks: {name}", [], shared, _special(shared, "table1")
        return
    for known in (METHODS, BENCHMARKS):
        if what in known:
            each: Any = known[what]
            usual = next(shared for shared in both.values() if each.kind in shared.method_kinds)
            parts = [each.config, type(usual)] if known is METHODS else []
            yield f"{what}: {each.description}", parts, usual, _special(usual, "table1")
    presets: tuple[Any, Any] = (PRESETS, POLICY_PRESETS)
    for kind, table in zip(both, presets, strict=True):
        if what in table:
            yield f"Preset {what}, {kind}", [], table[what], _special(table[what], what)


def _special(shared: SharedSettings, preset: str) -> dict[str, SharedSettings]:
    """The settings of a preset by benchmark, or for ProcGen by game, where they have their own."""
    if isinstance(shared, PolicySettings):
        games = GAMES if preset in POLICY_PRESETS else ()
        return {game: find_policy_preset(preset, game) for game in games}
    return {name: find_preset(preset, name) for which, name in RATES if which == preset}
