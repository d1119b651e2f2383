"""Shell completion of arguments and options."""

from collections.abc import Callable, Iterable

from ..experiments.benchmarks import BENCHMARKS
from ..methods import METHODS
from ..methods.policy_settings import PolicySettings
from ..methods.presets import POLICY_PRESETS, PRESETS
from ..methods.settings import Settings
from ..rl.games import GAMES
from ..scenarios import DATASETS

Completion = Callable[[str], list[str]]


def one_of(*words: str) -> Completion:
    """Complete to one of `words`."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def several_of(words: Iterable[str]) -> Completion:
    """Complete the last of comma-separated words, without those already typed."""

    def offered(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        matching = [word for word in words if word.startswith(last) and word not in taken]
        return [f"{before}{comma}{word}" for word in matching]

    return offered


def settings(incomplete: str) -> list[str]:
    """Complete to `key=` of a setting."""
    keys = sorted({*Settings.keys(), *PolicySettings.keys()})
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


methods, method = several_of(["all", *METHODS]), one_of(*METHODS)
benchmarks = one_of(*BENCHMARKS)
presets = one_of(*dict.fromkeys([*PRESETS, *POLICY_PRESETS]))
games = one_of(*GAMES, "all")
scenarios = one_of("domain", "task", "class")
devices = one_of("auto", "cpu", "cuda")
data_sets = one_of(*DATASETS)
