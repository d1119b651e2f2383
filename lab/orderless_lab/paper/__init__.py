"""The paper's tables, read from `published.toml`, and its claims.

``TABLE_1[benchmark][method]`` is (average accuracy, normalized variance),
``TABLE_2[benchmark][game][method]`` (average normalised return, its variance).
"""

import tomllib
from importlib.resources import files

Figures = dict[str, dict[str, list[float]]]

_FILE = tomllib.loads((files(__package__) / "published.toml").read_text(encoding="utf-8"))
TABLE_1: Figures = _FILE["table_1"]
TABLE_2: dict[str, Figures] = _FILE["table_2"]

SINGLE = ("gd", "bc", "ppo")  # its single networks, each of other benchmarks


def published(benchmark: str, variant: str) -> dict[str, list[float]]:
    """The paper's (average, variance) by method; empty where it reports none."""
    if benchmark in TABLE_2:
        return TABLE_2[benchmark].get(variant, {})
    return TABLE_1.get(benchmark, {})
