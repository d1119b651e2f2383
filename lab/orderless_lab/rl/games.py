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
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"levels must look like 0,1,2 or 0-14, got {text!r}")
        begin = int(first)
        end = int(last or first)
        if end < begin:
            raise ValueError(f"levels must be named from low to high, not {begin}-{end}: {text!r}")
        if end - begin >= MOST_LEVELS:
            raise ValueError(f"name at most {MOST_LEVELS:,} levels at once, got {text!r}")
        found += range(begin, end + 1)
    if len(found) != len(set(found)):
        raise ValueError(f"levels must be named once each, got {text!r}")
    checked_levels(max(found), 1)
    return tuple(found)


def checked_levels(level: int, num_levels: int) -> tuple[int, int]:
    """Check level numbers: envpool accepts any, ProcGen's levels are 0 to 2^31 - 2."""
    level = whole_number("level", level)
    num_levels = whole_number("num_levels", num_levels)
    if not 1 <= num_levels <= LEVELS_END:
        raise ValueError(f"num_levels must lie in 1..{LEVELS_END}, got {num_levels}")
    if not 0 <= level <= LEVELS_END - num_levels:
        raise ValueError(f"level must lie in 0..{LEVELS_END - num_levels}, got {level}")
    return level, num_levels


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Convert any integer type to int; raise for anything else, and for less than `least`."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if least is not None and operator.index(value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return operator.index(value)
