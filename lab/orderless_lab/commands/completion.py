"""Shell completion of arguments and options."""

from collections.abc import Callable, Iterable

from ..rl.games import GAMES
from ..suites import BENCHMARKS

Completion = Callable[[str], list[str]]


def matching(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def one_of(*words: str) -> Completion:
    """Complete to one of `words`."""
    return lambda incomplete: matching(words, incomplete)


def method(incomplete: str) -> list[str]:
    from ..methods import METHODS

    return matching(METHODS, incomplete)


def methods(incomplete: str) -> list[str]:
    """Complete the last of comma-separated methods, without those already typed."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    names = [name for name in ("all", *method("")) if name not in taken]
    return [f"{before}{comma}{name}" for name in matching(names, last)]


def benchmarks(incomplete: str) -> list[str]:
    return matching(BENCHMARKS, incomplete)


def presets(incomplete: str) -> list[str]:
    from ..suites.registry import SUITES

    names = [name for suite in SUITES.values() for name in suite.presets(suite.variants[0])]
    return matching(names, incomplete)


def settings(incomplete: str) -> list[str]:
    """Complete to `key=` of a setting."""
    from ..suites.registry import SUITES

    keys = {key for suite in SUITES.values() for key in suite.settings.known()}
    return matching([f"{key}=" for key in sorted(keys)], incomplete)


def explained(incomplete: str) -> list[str]:
    """Complete to what `orderless settings` explains."""
    return [*method(incomplete), *benchmarks(incomplete)]


def data_sets(incomplete: str) -> list[str]:
    from ..datasets.catalogue import DATASETS

    return matching(DATASETS, incomplete)


games = one_of(*GAMES, "all")
scenarios = one_of("domain", "task", "class")
devices = one_of("auto", "cpu", "cuda")
