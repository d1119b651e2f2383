"""The registry: a method is one description, and whoever registers one has it in every table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
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

    def described(self) -> dict[str, Any]:
        """The fields of a `Description` alone, ready for JSON."""
        return {f.name: asdict(self)[f.name] for f in fields(Description)}


@dataclass(frozen=True)
class NoSettings:
    """Of a method that reads nothing but what all methods read."""


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
    style: Style | None = None,
    base: str | None = None,
    config: type[Any] = NoSettings,
    needs: str | None = None,
    ignores: tuple[str, ...] = (),
) -> Callable[[Build], Build]:
    """Register a function `Setup -> learner` under a name; `Method` says what the options mean."""

    def register(build: Build) -> Build:
        METHODS[name] = Method(
            name,
            label or name,
            style,
            base,
            tuned=needs is not None,
            description=description,
            build=build,
            config=config,
            particles=particles,
            in_all=in_all,
            kind=kind,
            slow=slow,
            needs=needs,
            ignores=ignores,
        )
        return build

    return register


def find_method(name: str, kind: str | None = None) -> Method:
    """A method by its name; with `kind`, one for benchmarks of that kind."""
    known = [each.name for each in METHODS.values() if kind in (None, each.kind)]
    if name not in known:
        unknown = "unknown method" if name not in METHODS else "not a method for this benchmark:"
        raise ValueError(f"{unknown} {name!r}: choose from {', '.join(known)}")
    return METHODS[name]


def describe(name: str, recorded: Mapping[str, Any] | None = None) -> Description:
    """How a method is called and drawn, also one that nobody has registered here.

    Args:
        recorded: what the method's records keep of its description, if they do.
    """
    if name in METHODS:
        return METHODS[name]
    known = dict(recorded or {})
    style = known.get("style")
    return Description(
        name,
        str(known.get("label") or name),
        Style(**style) if style else None,
        known.get("base"),
        bool(known.get("tuned")),
    )


def table_order(name: str) -> tuple[int, str]:
    """Sort key: methods as they were registered, every other one by its name after them."""
    known = list(METHODS)
    return (known.index(name) if name in METHODS else len(known), name)
