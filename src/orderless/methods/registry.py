"""The registry: a method is one description, and whoever registers one has it in every table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar


@dataclass(frozen=True)
class Style:
    """How a method is drawn; kin share a style."""

    colour: str
    """As matplotlib and CSS write it: "#D55E00"."""
    marker: str
    """One of matplotlib's markers."""


@dataclass(frozen=True)
class Description:
    """What a method is called and how it is drawn; records keep it, for reports made later."""

    name: str
    """Its key on the command line and in files."""
    label: str = ""
    """Its name in tables, figures and pages; the key where there is none."""
    style: Style | None = None
    """Its colour and marker; None: whichever is free."""
    base: str | None = None
    """The x of x+wpf: the same method with one network instead of weighted particles."""
    tuned: bool = False
    """Whether it has a setting found on validation data, where its kin has the literature's."""

    def described(self) -> Description:
        """The description alone, for the records."""
        return Description(self.name, self.label, self.style, self.base, self.tuned)


@dataclass(frozen=True)
class NoSettings:
    """For methods without settings of their own."""


@dataclass(frozen=True)
class Method(Description):
    """A named way to learn."""

    description: str = ""
    """One sentence."""
    build: Callable[[Any], Any] = lambda setup: None
    """From a `Setup` to the learner."""
    config: type[Any] = NoSettings
    """The settings it reads besides: a frozen dataclass with a sentence below every field."""
    particles: bool = False
    """Whether it keeps many networks, or one."""
    in_all: bool = True
    """Whether "all methods" means this one, too; the others are run when they are named."""
    kind: str = "supervised"
    """Of the benchmarks it is made for: "supervised", "cloning" or "lifelong"."""
    slow: bool = False
    """Whether its cells are begun first where several processes share the work."""
    needs: str | None = None
    """A setting of its own that has no default: one that `orderless tune` finds."""
    ignores: tuple[str, ...] = ()
    """Settings that its kin reads and it does not."""
    tasks_apart: bool = False
    """Whether its tasks need nothing of each other: several processes may learn one each, and its
    learner has `add(other)`."""

    def origin(self) -> tuple[str, str]:
        """The modules it comes from, which may register it again when they are reloaded."""
        return self.build.__module__, self.config.__module__

    def check(self, config: Any) -> None:
        """Raise `ValueError` if it cannot run with these settings of its own."""
        if self.needs is not None and getattr(config, self.needs) is None:
            raise ValueError(
                f"{self.base or self.name} needs a strength: find one with `orderless tune` and "
                f"pass --set {self.needs}=VALUE"
            )


METHODS: dict[str, Method] = {}
Build = TypeVar("Build", bound=Callable[[Any], Any])


def method(
    name: str,
    description: str,
    particles: bool = False,
    in_all: bool = True,
    kind: str = "supervised",
    slow: bool = False,
    *,
    label: str = "",
    needs: str | None = None,
    **options: Any,
) -> Callable[[Build], Build]:
    """Register a function `Setup -> learner` under a name; options are the fields of `Method`."""

    def register(build: Build) -> Build:
        flags = {"particles": particles, "in_all": in_all, "kind": kind, "slow": slow}
        known: Any = {"description": description, "build": build, "needs": needs, **flags}
        tuned = needs is not None
        made = Method(name, label or name, tuned=tuned, **known, **options)
        if name in METHODS and METHODS[name].origin() != made.origin():
            raise ValueError(f"there is a method called {name!r} already: choose another name")
        METHODS[name] = made
        return build

    return register


def find_method(name: str, kind: str | None = None) -> Method:
    """A method by its name; with `kind`, one for benchmarks of that kind."""
    known = [each.name for each in METHODS.values() if kind in (None, each.kind)]
    if name not in known:
        unknown = "unknown method" if name not in METHODS else "not a method for this benchmark:"
        raise ValueError(f"{unknown} {name!r}: choose from {', '.join(known)}")
    return METHODS[name]


_RECORDED: dict[str, Description] = {}  # of methods that nobody has registered here


def remember(recorded: Description) -> None:
    """Keep what a record says of its method, for one that is not registered where it is read."""
    _RECORDED[recorded.name] = replace(recorded, label=recorded.label or recorded.name)


def describe(name: str) -> Description:
    """How a method is called and drawn: a registered one, one that a record told of, or any."""
    return METHODS.get(name) or _RECORDED.get(name) or Description(name, name)


def table_order(name: str) -> tuple[int, str]:
    """Sort key: methods as they were registered, every other one by its name after them."""
    known = list(METHODS)
    return (known.index(name) if name in METHODS else len(known), name)
