"""Initial values of particles, always computed on the CPU from (seed, i) alone."""

import copy
import hashlib
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import SupportsIndex

import torch
from torch import nn

_SEEDING = threading.RLock()


@dataclass(frozen=True)
class Perturb:
    """Particles as a network plus `r * randn`, with `r ~ U(low, high)` per tensor and particle.

    `base="one"`: all particles perturb one network (the paper's code); `base="fresh"`: each
    perturbs its own (the paper's text).

    >>> import torch, orderless as ol
    >>> trained = torch.nn.Linear(3, 2)
    >>> particles = ol.Ensemble(lambda: trained, n=4, init=ol.Perturb(0.01, 0.01))
    >>> bool((particles.weight - trained.weight).abs().max() < 0.1)
    True
    """

    low: float = 0.001
    high: float = 0.04
    base: str = "one"

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high:
            raise ValueError(
                f"Perturb needs 0 <= low <= high, got low={self.low}, high={self.high}"
            )
        if self.base not in ("one", "fresh"):
            raise ValueError(f"Perturb's base must be 'one' or 'fresh', got {self.base!r}")


def whole_seed(seed: SupportsIndex) -> int:
    """A Python int: initial values depend on the seed's `repr`, which differs for numpy's."""
    if not isinstance(seed, SupportsIndex):
        raise ValueError(f"seed must be a whole number, got {seed!r}")
    return operator.index(seed)


def chosen_indices(n: SupportsIndex, indices: Sequence[int] | None) -> list[int]:
    """The indices of the particles to hold, of 0 to n - 1."""
    if not isinstance(n, SupportsIndex) or operator.index(n) < 1:
        raise ValueError(f"n must be a whole number of at least 1, got {n!r}")
    everyone = list(range(operator.index(n)))
    chosen = everyone if indices is None else [operator.index(index) for index in indices]
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(everyone):
        raise ValueError(f"indices must be different numbers below {n}, got {indices!r}")
    return chosen


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Seed torch's CPU generator by a hash of `parts`, and restore it afterwards.

    The generator is the process's own, so threads wait for each other.
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        yield


def _reset(module: nn.Module) -> nn.Module:
    """A copy of a template in which every layer is initialised again.

    Inner modules first, as when a module is built: an outer one may overwrite their parameters.
    """
    module = copy.deepcopy(module)
    for name, layer in reversed(list(module.named_modules())):
        private = getattr(layer, "_reset_parameters", None)
        reset = getattr(layer, "reset_parameters", None) or private
        if callable(reset):
            reset()
        elif any(True for _ in layer.parameters(recurse=False)):
            raise TypeError(
                f"layer {name or type(layer).__name__!r} has parameters but no reset_parameters(): "
                "pass a function that makes the model instead of a module"
            )
    return module


def make_particle(
    make_model: Callable[[], nn.Module] | nn.Module, seed: int, index: int
) -> nn.Module:
    """Make network `index` of an ensemble on the CPU."""
    with seeded("particle", seed, index), torch.device("cpu"):
        module = _reset(make_model) if isinstance(make_model, nn.Module) else make_model()
    if not isinstance(module, nn.Module):
        raise TypeError(f"make_model must return an nn.Module, got {type(module).__name__}")
    refuse_lazy(module)
    return module


def refuse_lazy(module: nn.Module) -> None:
    """Raise if a module has lazy layers, whose shapes are not known."""
    lazy = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
    if any(isinstance(tensor, lazy) for tensor in (*module.parameters(), *module.buffers())):
        raise TypeError(
            f"{type(module).__name__} has lazy layers without shapes yet: run one batch through "
            "it, or give the layers their sizes"
        )


def initial_modules(
    make_model: Callable[[], nn.Module] | nn.Module,
    indices: Iterable[int],
    init: str | Perturb,
    seed: int,
) -> Iterator[nn.Module]:
    """Make the networks `indices` of the ensemble with this seed, one after another."""
    if init != "fresh" and not isinstance(init, Perturb):
        raise ValueError(f"init must be 'fresh' or an ol.Perturb, got {init!r}")
    for index in indices:
        if not isinstance(init, Perturb):
            yield make_particle(make_model, seed, index)
            continue
        base = 0 if init.base == "one" else index
        # a copy: make_model may return the same network every time
        module = copy.deepcopy(make_particle(make_model, seed, base))
        with seeded("perturb", seed, index), torch.no_grad():
            for parameter in module.parameters():
                if not (parameter.is_floating_point() or parameter.is_complex()):
                    continue
                radius = init.low + (init.high - init.low) * torch.rand(())
                parameter.add_(radius * torch.randn(parameter.shape))
        yield module
