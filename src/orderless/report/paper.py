"""What others published, read from `published.toml`: the paper's tables, the literature's figures.

``TABLE_1[benchmark][method]`` is (average accuracy, normalized variance),
``TABLE_2[benchmark][game][method]`` (average normalised return, its variance).
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from ..methods import describe
from ..storage.typed import decode

Figures = dict[str, dict[str, list[float]]]
Fractions = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Published:
    """The file's sections."""

    table_1: Figures
    table_2: dict[str, Figures]
    hsu_2018: Fractions
    van_de_ven: Fractions
    chance: Fractions


_TEXT = (files(__package__) / "published.toml").read_text(encoding="utf-8")
_PUBLISHED = decode(Published, tomllib.loads(_TEXT))
TABLE_1, TABLE_2, CHANCE = _PUBLISHED.table_1, _PUBLISHED.table_2, _PUBLISHED.chance
HSU_2018, VAN_DE_VEN = _PUBLISHED.hsu_2018, _PUBLISHED.van_de_ven

BENCHMARK_LABELS = {
    "splitmnist": "SplitMNIST",
    "splitcifar100": "SplitCIFAR100",
    "intents": "Intents",
    "procgen-bc": "ProcGen, behaviour cloning",
    "procgen-lifelong": "ProcGen, lifelong learning",
}


def published(benchmark: str, scenario: str) -> dict[str, list[float]]:
    """The paper's own (average, variance) by method; empty where it has none."""
    if benchmark in TABLE_2:
        return TABLE_2[benchmark].get(scenario, {})
    return TABLE_1.get(benchmark, {})


def method_label(name: str) -> str:
    """How a method is called in a printed table."""
    return describe(name).label


def benchmark_label(name: str) -> str:
    """How a benchmark is called in a printed table."""
    return BENCHMARK_LABELS.get(name, name)


def released_scoring(name: str) -> str:
    """How the paper's released code scores a row: weighted particles by their weighted logits,
    averaging by the mean of single accuracies, gradient descent by one particle."""
    return "logits" if name.split("+")[-1] == "wpf" else "accuracy"
