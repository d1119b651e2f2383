"""What others published, as data: the paper's tables and the literature's SplitMNIST figures.

Scores are fractions. ``TABLE_1[benchmark][method]`` is (average accuracy, normalized variance)
over 10 permutations with 100 particles; the paper gives no formula for its normalized variance.
``TABLE_2[benchmark][game][method]`` is (average normalised return, its variance) likewise.
"""

from __future__ import annotations

from ..methods import describe

BENCHMARK_LABELS = {
    "splitmnist": "SplitMNIST",
    "splitcifar100": "SplitCIFAR100",
    "intents": "Intents",
    "procgen-bc": "ProcGen, behaviour cloning",
    "procgen-lifelong": "ProcGen, lifelong learning",
}

TABLE_1: dict[str, dict[str, tuple[float, float]]] = {
    "splitmnist": {
        "wpf": (0.720, 0.002),
        "averaging": (0.534, 0.012),
        "bootstrap": (0.501, 0.001),
        "gd": (0.487, 0.032),
        "ewc": (0.663, 0.186),
        "ewc+wpf": (0.768, 0.004),
        "lwf": (0.673, 0.097),
        "lwf+wpf": (0.792, 0.012),
        "si": (0.586, 0.168),
        "si+wpf": (0.676, 0.025),
    },
    "splitcifar100": {
        "wpf": (0.239, 0.001),
        "averaging": (0.213, 0.020),
        "bootstrap": (0.198, 0.006),
        "gd": (0.201, 0.001),
        "ewc": (0.232, 0.010),
        "ewc+wpf": (0.258, 0.004),
        "lwf": (0.264, 0.050),
        "lwf+wpf": (0.290, 0.007),
        "si": (0.229, 0.005),
        "si+wpf": (0.246, 0.001),
    },
}

TABLE_2: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
    "procgen-bc": {
        "dodgeball": {
            "bc": (0.28, 0.16),
            "bc+wpf": (0.63, 0.08),
            "bc+averaging": (0.31, 0.11),
            "bc+bootstrap": (0.37, 0.09),
        },
        "starpilot": {
            "bc": (0.35, 0.11),
            "bc+wpf": (0.52, 0.04),
            "bc+averaging": (0.41, 0.08),
            "bc+bootstrap": (0.33, 0.10),
        },
        "fruitbot": {
            "bc": (0.33, 0.13),
            "bc+wpf": (0.48, 0.05),
            "bc+averaging": (0.36, 0.07),
            "bc+bootstrap": (0.39, 0.07),
        },
    },
    "procgen-lifelong": {
        "dodgeball": {
            "ppo": (0.31, 0.09),
            "ppo+wpf": (0.40, 0.04),
            "ppo+averaging": (0.34, 0.09),
            "ppo+bootstrap": (0.33, 0.11),
            "ppo+trac": (0.69, 0.16),
            "ppo+trac+wpf": (0.74, 0.04),
            "ppo+ewc": (0.37, 0.11),
            "ppo+ewc+wpf": (0.42, 0.06),
        },
        "starpilot": {
            "ppo": (0.38, 0.05),
            "ppo+wpf": (0.55, 0.03),
            "ppo+averaging": (0.40, 0.03),
            "ppo+bootstrap": (0.35, 0.06),
            "ppo+trac": (0.62, 0.16),
            "ppo+trac+wpf": (0.68, 0.01),
            "ppo+ewc": (0.40, 0.02),
            "ppo+ewc+wpf": (0.48, 0.01),
        },
        "fruitbot": {
            "ppo": (0.47, 0.05),
            "ppo+wpf": (0.63, 0.03),
            "ppo+averaging": (0.44, 0.04),
            "ppo+bootstrap": (0.48, 0.06),
            "ppo+trac": (0.76, 0.16),
            "ppo+trac+wpf": (0.80, 0.04),
            "ppo+ewc": (0.60, 0.04),
            "ppo+ewc+wpf": (0.64, 0.01),
        },
    },
}

# Average accuracy of single networks on SplitMNIST, scenario -> method -> fraction.
HSU_2018: dict[str, dict[str, float]] = {
    "task": {
        "adam": 0.9346,
        "gd": 0.9798,
        "ewc": 0.9770,
        "si": 0.9856,
        "lwf": 0.9960,
        "joint": 0.9952,
    },
    "domain": {
        "adam": 0.5516,
        "gd": 0.6320,
        "ewc": 0.5885,
        "si": 0.6476,
        "lwf": 0.7102,
        "joint": 0.9859,
    },
    "class": {
        "adam": 0.1971,
        "gd": 0.1946,
        "ewc": 0.1980,
        "si": 0.1967,
        "lwf": 0.2417,
        "joint": 0.9753,
    },
}

# Read off the figure of van de Ven's tutorial; its single network without a method uses Adam.
VAN_DE_VEN: dict[str, dict[str, float]] = {
    "domain": {"adam": 0.595, "ewc": 0.62, "si": 0.68, "lwf": 0.715, "joint": 0.985},
}

# What guessing gives: benchmark -> scenario -> 1 / number of outputs a test sample is judged among.
CHANCE: dict[str, dict[str, float]] = {
    "splitmnist": {"domain": 1 / 2, "task": 1 / 2, "class": 1 / 10},
    "splitcifar100": {"domain": 1 / 5, "task": 1 / 5, "class": 1 / 100},
}


def published(benchmark: str, scenario: str) -> dict[str, tuple[float, float]]:
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
