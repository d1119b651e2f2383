"""ProcGen's games and level numbers, without importing envpool."""

from orderless.errors import UserError

# (low, high): (R - low) / (high - low) is the normalised return in hard mode.
RETURN_RANGES = {"starpilot": (1.5, 35.0), "fruitbot": (-0.5, 27.2), "dodgeball": (1.5, 19.0)}
GAMES = tuple(RETURN_RANGES)
LEVELS_END = 2**31 - 1
MOST_LEVELS = 100_000  # in one range


def known_game(game: str) -> str:
    """Return the name of a game; raise if there is no such game."""
    if game not in RETURN_RANGES:
        raise UserError(f"game must be one of {', '.join(GAMES)}, got {game!r}")
    return game


def parse_levels(text: str) -> tuple[int, ...]:
    """Parse `"0,1,5"`, `"0-14"` or both: the levels in the order named."""
    levels: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"levels must look like 0,1,2 or 0-14, got {text!r}")
        begin = int(first)
        end = int(last or first)
        if not begin <= end < begin + MOST_LEVELS:
            raise UserError(
                f"levels must be named from low to high, at most {MOST_LEVELS:,}, got {text!r}"
            )
        levels += range(begin, end + 1)
    if len(levels) != len(set(levels)):
        raise UserError(f"levels must be named once each, got {text!r}")
    checked_level(max(levels))
    return tuple(levels)


def checked_level(level: int, num_levels: int = 1) -> int:
    """Check level numbers: envpool accepts any, ProcGen's levels are 0 to 2^31 - 2."""
    if num_levels < 1:
        raise UserError(f"num_levels must be at least 1, got {num_levels}")
    if not 0 <= level <= LEVELS_END - num_levels:
        raise UserError(f"level must lie in 0..{LEVELS_END - num_levels}, got {level}")
    return level
