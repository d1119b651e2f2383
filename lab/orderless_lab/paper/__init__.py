"""Published figures, read from `published.toml`: the paper's tables and the literature's figures.

``TABLE_1[benchmark][method]`` is (average accuracy, normalized variance),
``TABLE_2[benchmark][game][method]`` (average normalised return, its variance).
"""

import tomllib
from importlib.resources import files

from ..methods import describe

Figures = dict[str, dict[str, list[float]]]
Fractions = dict[str, dict[str, float]]

_FILE = tomllib.loads((files(__package__) / "published.toml").read_text(encoding="utf-8"))
TABLE_1: Figures = _FILE["table_1"]
TABLE_2: dict[str, Figures] = _FILE["table_2"]
HSU_2018: Fractions = _FILE["hsu_2018"]
VAN_DE_VEN: Fractions = _FILE["van_de_ven"]
CHANCE: Fractions = _FILE["chance"]

BENCHMARK_LABELS = {
    "splitmnist": "SplitMNIST",
    "splitcifar100": "SplitCIFAR100",
    "intents": "Intents",
    "procgen-bc": "ProcGen, behaviour cloning",
    "procgen-lifelong": "ProcGen, lifelong learning",
}


def published(benchmark: str, scenario: str) -> dict[str, list[float]]:
    """The paper's (average, variance) by method; empty where it reports none."""
    if benchmark in TABLE_2:
        return TABLE_2[benchmark].get(scenario, {})
    return TABLE_1.get(benchmark, {})


def method_label(name: str) -> str:
    """The name of a method in tables and figures."""
    return describe(name).label


def benchmark_label(name: str) -> str:
    """The name of a benchmark in tables and figures."""
    return BENCHMARK_LABELS.get(name, name)


def released_scoring(name: str) -> str:
    """The combination by which the paper's released code scores a row: "logits" for weighted
    particles; "accuracy", the mean over the particles, for the others."""
    return "logits" if name.split("+")[-1] == "wpf" else "accuracy"
