"""What others published, as data: the paper's Table 1 and the literature's SplitMNIST figures.

Scores are fractions. ``TABLE_1[benchmark][method]`` is (average accuracy, normalized variance)
over 10 permutations with 100 particles; the paper gives no formula for its normalized variance.
"""

from __future__ import annotations

METHOD_LABELS = {
    "wpf": "Weighted particle filter",
    "averaging": "Averaging particles",
    "bootstrap": "Baseline particle filter",
    "gd": "Gradient descent",
    "adam": "Adam",
    "ewc": "EWC",
    "ewc+wpf": "EWC + WPF",
    "lwf": "LwF",
    "lwf+wpf": "LwF + WPF",
    "si": "SI",
    "si+wpf": "SI + WPF",
    "ewc-tuned": "EWC, tuned",
    "ewc-tuned+wpf": "EWC, tuned + WPF",
    "lwf-tuned": "LwF, tuned",
    "lwf-tuned+wpf": "LwF, tuned + WPF",
    "si-tuned": "SI, tuned",
    "si-tuned+wpf": "SI, tuned + WPF",
    "er": "Experience replay",
    "joint": "Joint training (upper bound)",
    "rb": "Rao-Blackwellized filter",
    "gsf": "Gaussian-sum filter",
}

BENCHMARK_LABELS = {"splitmnist": "SplitMNIST", "splitcifar100": "SplitCIFAR100"}

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


def method_order(name: str) -> tuple[int, str]:
    """Sort key: the table's own order first, every other method alphabetically after it."""
    known = list(METHOD_LABELS)
    return (known.index(name) if name in known else len(known), name)


def method_label(name: str) -> str:
    """How a method is called in a printed table."""
    return METHOD_LABELS.get(name, name)


def benchmark_label(name: str) -> str:
    """How a benchmark is called in a printed table."""
    return BENCHMARK_LABELS.get(name, name)
