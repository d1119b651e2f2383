"""ProcGen's games by name, and their levels by number: what can be asked for without playing."""

import operator
from typing import Any, SupportsIndex

# (R - low) / (high - low) is the normalised return in hard mode.
RETURN_RANGES = {"starpilot": (1.5, 35.0), "fruitbot": (-0.5, 27.2), "dodgeball": (1.5, 19.0)}
GAMES = tuple(RETURN_RANGES)
LEVELS_END = 2**31 - 1
MOST_LEVELS = 100_000  # by one dash


def known_game(game: str) -> str:
    """The name itself; one that is no game's is refused."""
    if game not in RETURN_RANGES:
        raise ValueError(f"game must be one of {', '.join(GAMES)}, got {game!r}")
    return game


def parse_levels(text: str) -> tuple[int, ...]:
    """`"0,1,5"`, `"0-14"` or both: the levels in the order named."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"levels must look like 0,1,2 or 0-14, got {text!r}")
        begin, end = int(first), int(last or first)
        if end - begin >= MOST_LEVELS:
            raise ValueError(f"name at most {MOST_LEVELS:,} levels at once, got {text!r}")
        found += range(begin, end + 1)
    if not found or len(found) != len(set(found)):
        raise ValueError(f"levels must be named once each, and at least one, got {text!r}")
    for level in (min(found), max(found)):
        checked_levels(level, 1)
    return tuple(found)


def checked_levels(level: int, num_levels: int) -> tuple[int, int]:
    """envpool takes any number; ProcGen's levels are 0 to 2^31 - 2."""
    if not isinstance(level, SupportsIndex) or not isinstance(num_levels, SupportsIndex):
        raise TypeError(f"levels must be whole numbers, got level={level}, num_levels={num_levels}")
    level, num_levels = operator.index(level), operator.index(num_levels)
    if not 1 <= num_levels <= LEVELS_END:
        raise ValueError(f"num_levels must lie in 1..{LEVELS_END}, got {num_levels}")
    if not 0 <= level <= LEVELS_END - num_levels:
        raise ValueError(f"level must lie in 0..{LEVELS_END - num_levels}, got {level}")
    return level, num_levels


def whole_number(name: str, value: Any) -> int:
    """numpy's whole numbers as Python's; anything else is refused."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    return operator.index(value)
