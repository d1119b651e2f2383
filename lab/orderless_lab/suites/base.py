"""`Suite`: one object per family of benchmarks. It knows everything that is special about it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch import nn

from orderless.errors import UserError, did_you_mean

from ..methods.registry import METHODS, Method, find_method
from ..methods.settings import RunSettings
from .streams import orders

if TYPE_CHECKING:
    from ..runs.runner import CellRunner


class Preset(NamedTuple):
    """Settings by name, with the usual numbers of orders and seeds."""

    settings: RunSettings
    orders: int = 10
    seeds: int = 1


@dataclass(frozen=True)
class Outline:
    """What is known of tasks without loading them; a `Scenario` has the same attributes."""

    tasks: int
    input_shape: tuple[int, ...]
    outputs: int

    def __len__(self) -> int:
        return self.tasks


@dataclass
class Suite(ABC):
    """A family of benchmarks: its tasks, networks, settings and presets, and how it scores.

    A *variant* is what the tables of a suite differ in: the scenario (domain, task, class) or the
    game, see `variant_name`. The first is the default, as is the first preset.
    """

    name: str
    label: str
    description: str

    settings: ClassVar[type[RunSettings]]
    runner: ClassVar[type[CellRunner]]  # learns the tasks of a cell and scores them
    unit: ClassVar[Literal["accuracy", "return"]] = "accuracy"
    scores: ClassVar[tuple[str, ...]] = ("particles",)  # the ways in which it scores
    variant_name: ClassVar[str] = "scenario"
    usual_method: ClassVar[str] = "gd"  # of `tune`
    variants: tuple[str, ...] = field(init=False)
    _loaded: tuple[Any, Any] | None = field(default=None, init=False, repr=False)

    @property
    def family(self) -> list[str]:
        """The names of its methods."""
        return [name for name in self.settings.family if name in METHODS]

    def method(self, name: str) -> Method:
        return find_method(name, self.family)

    @abstractmethod
    def presets(self, variant: str) -> Mapping[str, Preset]:
        """The presets by name; the first is the usual one."""

    def preset(self, name: str | None = None, variant: str | None = None) -> Preset:
        """A preset by its name, or the usual one."""
        known = self.presets(variant or self.variants[0])
        if name is None:
            return next(iter(known.values()))
        if name not in known:
            hint = did_you_mean(name, known)
            raise UserError(
                f"unknown preset {name!r} of {self.name}{hint}: choose from {', '.join(known)}"
            )
        return known[name]

    @abstractmethod
    def outline(self, variant: str, settings: Any) -> Outline:
        """The number of tasks and the shapes, without the data."""

    @abstractmethod
    def load(self, variant: str, settings: Any, seed: int, root: str | None, device: str) -> Any:
        """The tasks with their data; `seed` assigns classes to tasks at random."""

    def tasks(self, variant: str, settings: Any, seed: int, root: str | None, device: str) -> Any:
        """As `load`; what was loaded last is kept."""
        key = (variant, settings, settings.seed_of_tasks(seed), root, device)
        if self._loaded is None or self._loaded[0] != key:
            self.release()  # before others take memory
            self._loaded = (key, self.load(variant, settings, key[2], root, device))
        return self._loaded[1]

    def release(self) -> None:
        """Forget the tasks that were loaded last: their files may have changed."""
        self._loaded = None

    def prepare(self, tasks: Any, say: Callable[[str], None]) -> None:  # noqa: B027  (optional)
        """Prepare what all cells need, before the first is computed."""

    def digest(self, variant: str, settings: Any) -> str | None:
        """A checksum of a user's own data, which may change between runs."""
        return None

    @abstractmethod
    def network(self, shapes: Any, settings: Any) -> Callable[[], nn.Module]:
        """A function that makes networks for tasks or their `Outline`."""

    def orders(self, tasks: int, permutations: int, settings: Any) -> list[tuple[int, ...]]:
        """The orders of the tasks."""
        return orders(tasks, permutations, settings.order_seed)

    def most_orders(self, variant: str, settings: Any) -> int:
        """How many orders there are."""
        return math.factorial(self.outline(variant, settings).tasks)

    def check_variant(self, variant: str) -> str:
        if variant not in self.variants:
            known = ", ".join(self.variants)
            raise UserError(
                f"{self.variant_name} must be one of {known}, got {variant!r}"
                f"{did_you_mean(variant, self.variants)}"
            )
        return variant
