"""The registry itself: a name, and how to build the learner it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True)
class Method:
    """A named way to learn.

    `particles` tells whether it keeps many networks or one, `in_all` whether "all methods" means
    this one, too; the others are run when they are named. `kind` is that of the benchmarks it is
    made for: "supervised", "cloning" or "lifelong". Cells of a `slow` one are begun first where
    several processes share the work, so that none is left alone with it at the end.
    """

    name: str
    description: str
    build: Callable[[Any], Any]
    particles: bool
    in_all: bool = True
    kind: str = "supervised"
    slow: bool = False


METHODS: dict[str, Method] = {}
Build = TypeVar("Build", bound=Callable[[Any], Any])


def method(
    name: str,
    description: str,
    particles: bool = False,
    in_all: bool = True,
    kind: str = "supervised",
    slow: bool = False,
) -> Callable[[Build], Build]:
    """Register a function `Setup -> learner` under a name."""

    def register(build: Build) -> Build:
        METHODS[name] = Method(name, description, build, particles, in_all, kind, slow)
        return build

    return register


def find_method(name: str, kind: str | None = None) -> Method:
    """A method by its name; with `kind`, one for benchmarks of that kind."""
    known = [each.name for each in METHODS.values() if kind in (None, each.kind)]
    if name not in known:
        unknown = "unknown method" if name not in METHODS else "not a method for this benchmark:"
        raise ValueError(f"{unknown} {name!r}: choose from {', '.join(known)}")
    return METHODS[name]
