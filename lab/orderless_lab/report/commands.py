"""The commands that computed a table, joined where they differ in their extent only."""

import re
from collections.abc import Iterable, Sequence

EXTENT = re.compile(r"(?<= --methods )\S+|(?<= --permutations )\d+|(?<= --seeds )\d+")


def joined(commands: Iterable[str], finished: Sequence[str]) -> str:
    """One command line that computes what all commands did.

    A table may have been computed in several runs, some methods first and more seeds later: these
    become one, with the union of their `finished` methods and the largest numbers.
    """
    extents: dict[tuple[str, ...], list[str]] = {}
    for command in commands:
        rest, values = tuple(EXTENT.split(command)), EXTENT.findall(command)
        known = extents.get(rest, values)
        extents[rest] = [_larger(*pair, finished) for pair in zip(known, values, strict=True)]
    return " && ".join(
        "".join(a + b for a, b in zip(rest, [*values, ""], strict=True))
        for rest, values in extents.items()
    )


def _larger(first: str, second: str, finished: Sequence[str]) -> str:
    if first.isdecimal() and second.isdecimal():
        return str(max(int(first), int(second)))
    asked = {*first.split(","), *second.split(",")}
    return ",".join(name for name in finished if name in asked) or first
