"""`orderless settings`: every setting with its default and its sentence."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..experiments.benchmarks import BENCHMARKS
from ..methods import METHODS
from ..methods.config import kinds, sentences
from ..methods.plugins import load_plugins
from ..methods.policy_settings import PolicySettings
from ..methods.presets import POLICY_PRESETS, PRESETS
from ..methods.settings import Settings, SharedSettings
from . import completion, options
from .errors import problems_as_sentences

What = Annotated[
    str | None,
    typer.Argument(
        help="A method, a benchmark or a preset; everything without it.",
        autocompletion=completion.one_of(*METHODS, *BENCHMARKS, *PRESETS),
    ),
]


@problems_as_sentences()
def settings(what: What = None, plugin: options.Plugin = None) -> None:
    """What --set changes: each setting, its default and what it means.

    Of a method those that it reads, of a benchmark those of all its methods, of a preset the values
    that it has.

    Example: orderless settings ewc
    """
    load_plugins(plugin or ())
    for title, values, parts in _sections(what):
        typer.echo(f"{title}\n")
        for part in parts:
            said = sentences(part)
            for key in kinds(part):
                if key != "own":
                    typer.echo(f"  {key}={values[key]}\n      {said.get(key, '')}")
        typer.echo("")


def _sections(what: str | None) -> list[tuple[str, dict[str, Any], list[type[Any]]]]:
    """(title, values by key, configurations) of what is asked for."""
    both: dict[str, SharedSettings] = {"supervised": Settings(), "ProcGen": PolicySettings()}
    if what is None:
        return [(f"Benchmarks: {name}", s.flat(), _parts(s)) for name, s in both.items()]
    found: list[tuple[str, dict[str, Any], list[type[Any]]]] = []
    if what in METHODS:
        method = METHODS[what]
        usual = next(s for s in both.values() if method.kind in s.method_kinds)
        title = f"{what}: {method.description}"
        found.append((title, usual.flat(), [method.config, type(usual)]))
    if what in BENCHMARKS:
        benchmark = BENCHMARKS[what]
        usual = next(s for s in both.values() if benchmark.kind in s.method_kinds)
        found.append((f"{what}: {benchmark.description}", usual.flat(), _parts(usual)))
    for presets in (PRESETS, POLICY_PRESETS):
        if what in presets:
            preset: SharedSettings = presets[what]  # type: ignore[assignment]
            kind = "ProcGen" if presets is POLICY_PRESETS else "supervised"
            found.append((f"Preset {what}, {kind}", preset.flat(), _parts(preset)))
    if not found:
        known = ", ".join(dict.fromkeys([*METHODS, *BENCHMARKS, *PRESETS, *POLICY_PRESETS]))
        raise ValueError(f"no method, benchmark or preset is called {what!r}: choose from {known}")
    return found


def _parts(settings: SharedSettings) -> list[type[Any]]:
    return [type(settings), *settings.configs()]
