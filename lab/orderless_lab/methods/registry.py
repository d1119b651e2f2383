"""The registry of methods. A registered method appears in every command, table and figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar


@dataclass(frozen=True)
class Style:
    """How figures draw a method; related methods share a style."""

    colour: str
    """A hexadecimal colour: "#D55E00"."""
    marker: str
    """One of matplotlib's markers."""


@dataclass(frozen=True)
class Description:
    """A method's name and style. Records store it, for reports that are written later."""

    name: str
    """Its key on the command line and in files."""
    label: str = ""
    """Its name in tables, figures and pages; "": the key."""
    style: Style | None = None
    """Its colour and marker; None: any that are free."""
    base: str | None = None
    """The x of x+wpf: the same method with one network instead of weighted particles."""
    tuned: bool = False
    """Whether it has a setting found on validation data, where its base has the literature's."""
    weighted: bool = False
    """Whether its networks have weights by how well they explained the data: reports judge it
    against the same method without weights, and score it by logits, as the paper's code does."""
    joint: bool = False
    """Whether it sees all tasks at once, so that no report calls it the best."""

    def described(self) -> Description:
        """The description alone, for the records."""
        values = {field.name: getattr(self, field.name) for field in fields(Description)}
        return Description(**values)


@dataclass(frozen=True)
class NoSettings:
    """The configuration of methods without settings of their own."""


@dataclass(frozen=True)
class Method(Description):
    """A method: its description, and how its learner is built."""

    description: str = ""
    """One sentence."""
    build: Callable[[Any], Any] = lambda setup: None
    """From a `Setup` to the learner."""
    config: type[Any] = NoSettings
    """Its own settings: a frozen dataclass with a documenting string below every field."""
    particles: bool = False
    """Whether it has many networks, or one."""
    in_all: bool = True
    """Whether `--methods all` includes it; the others run when they are named."""
    kind: str = "supervised"
    """The kind of its benchmarks: "supervised", "cloning" or "lifelong"."""
    slow: bool = False
    """Whether parallel runs start its cells first."""
    needs: str | None = None
    """A setting without a default, which `orderless tune` finds."""
    ignores: tuple[str, ...] = ()
    """Settings that have no effect on it."""
    tasks_apart: bool = False
    """Whether its tasks are independent: several processes may learn one task each, and its
    learner has `add(other)`."""

    def origin(self) -> tuple[str, str, str]:
        """Where it is defined; a module that is reloaded may register it again."""
        function = getattr(self.build, "__qualname__", "")
        return self.build.__module__, function, self.config.__module__

    def check(self, config: Any) -> None:
        """Raise `ValueError` if the setting that it needs is missing."""
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
        flags: Any = {"particles": particles, "in_all": in_all, "kind": kind, "slow": slow}
        options.update(flags, description=description, build=build, needs=needs)
        made = Method(name, label or name, tuned=needs is not None, **options)
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
