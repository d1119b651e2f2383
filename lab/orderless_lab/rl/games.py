"""ProcGen's games and level numbers, without importing envpool."""

import operator
from typing import Any, SupportsIndex

# (low, high): (R - low) / (high - low) is the normalised return in hard mode.
RETURN_RANGES = {"starpilot": (1.5, 35.0), "fruitbot": (-0.5, 27.2), "dodgeball": (1.5, 19.0)}
GAMES = tuple(RETURN_RANGES)
LEVELS_END = 2**31 - 1
MOST_LEVELS = 100_000  # in one range


def known_game(game: str) -> str:
    """Return the name of a game; raise if there is no such game."""
    if game not in RETURN_RANGES:
        raise ValueError(f"game must be one of {', '.join(GAMES)}, got {game!r}")
    return game


def parse_levels(text: str) -> tuple[int, ...]:
    """Parse `"0,1,5"`, `"0-14"` or both: the levels in the order named."""
    levels: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"levels must look like 0,1,2 or 0-14, got {text!r}")
        begin = int(first)
        end = int(last or first)
        if not begin <= end < begin + MOST_LEVELS:
            raise ValueError(
                f"levels must be named from low to high, at most {MOST_LEVELS:,}, got {text!r}"
            )
        levels += range(begin, end + 1)
    if len(levels) != len(set(levels)):
        raise ValueError(f"levels must be named once each, got {text!r}")
    checked_level(max(levels))
    return tuple(levels)


def checked_level(level: int, num_levels: int = 1) -> int:
    """Check level numbers: envpool accepts any, ProcGen's levels are 0 to 2^31 - 2."""
    if not 1 <= whole_number("num_levels", num_levels) <= LEVELS_END:
        raise ValueError(f"num_levels must lie in 1..{LEVELS_END}, got {num_levels}")
    if not 0 <= whole_number("level", level) <= LEVELS_END - num_levels:
        raise ValueError(f"level must lie in 0..{LEVELS_END - num_levels}, got {level}")
    return operator.index(level)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Convert any integer type to int; raise for anything else, and for less than `least`."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if least is not None and operator.index(value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return operator.index(value)
