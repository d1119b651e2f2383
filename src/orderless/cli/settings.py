"""`orderless settings`: list the settings with their defaults."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..experiments.benchmarks import BENCHMARKS
from ..methods import METHODS
from ..methods.config import allowed, sentences
from ..methods.plugins import load_plugins
from ..methods.policy_settings import PolicySettings
from ..methods.presets import POLICY_PRESETS, PRESETS
from ..methods.settings import Settings, SharedSettings
from . import completion, options
from .options import word

SAID = "A method, a benchmark or a preset [all settings]."
What = Annotated[str | None, word(SAID, completion.one_of(*METHODS, *BENCHMARKS, *PRESETS))]
Section = tuple[str, SharedSettings, list[type[Any]]]  # title, values, configurations


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
    for title, shared, parts in found:
        typer.echo(f"{title}\n")
        values = shared.flat()
        for part in parts or [type(shared), *shared.configs()]:
            said = sentences(part)
            for key in allowed(part):
                if key != "own":
                    typer.echo(f"  {key}={values[key]}\n      {said.get(key, '')}")
        typer.echo("")


def _sections(what: str | None) -> Iterator[Section]:
    """The sections to print; an empty list of configurations means all of them."""
    both: dict[str, SharedSettings] = {"supervised": Settings(), "ProcGen": PolicySettings()}
    if what is None:
        yield from ((f"Benchmarks: {name}", shared, []) for name, shared in both.items())
        return
    for known in (METHODS, BENCHMARKS):
        if what in known:
            each: Any = known[what]
            usual = next(shared for shared in both.values() if each.kind in shared.method_kinds)
            parts = [each.config, type(usual)] if known is METHODS else []
            yield f"{what}: {each.description}", usual, parts
    presets: tuple[Any, Any] = (PRESETS, POLICY_PRESETS)
    for kind, table in zip(both, presets, strict=True):
        if what in table:
            yield f"Preset {what}, {kind}", table[what], []
