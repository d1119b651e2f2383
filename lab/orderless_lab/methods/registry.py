"""The registry of methods. A registered method appears in every command, table and figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from orderless.cli.references import import_module
from orderless.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from .settings import Settings

# Settings that not every method reads. A method's results depend on those that it names.
GRADIENT = ("optimizer", "lr", "adam_lr", "schedule", "max_grad_norm")
WEIGHTS = ("weighting", "loss_scale", "min_ess")
NETWORK = ("init", "perturb_low", "perturb_high", "network", "hidden")
PARTICLES = ("particles",)
BY_CHOICE = frozenset(GRADIENT + WEIGHTS + NETWORK + PARTICLES)

DESCENT = GRADIENT + NETWORK  # what one network under gradient descent reads
ENSEMBLE = DESCENT + PARTICLES
WEIGHTED = ENSEMBLE + WEIGHTS

# the names of the methods of the supervised suites, of cloning, and of lifelong learning
SUPERVISED: list[str] = []
CLONING: list[str] = []
LIFELONG: list[str] = []

PLUGINS = "orderless_lab.methods"  # entry points of installed packages


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
class Method(Description):
    """A method: its description, and how its learner is built."""

    description: str = ""
    """One sentence."""
    build: Callable[[Any], Any] = lambda setup: None
    """From a `Setup` to the learner."""
    settings: type[Settings] | None = None
    """Its own settings."""
    reads: tuple[str, ...] = tuple(BY_CHOICE)
    """Which of the settings `BY_CHOICE` have an effect on it."""
    slow: bool = False
    """Whether parallel runs start its cells first."""

    @property
    def particles(self) -> bool:
        """Whether it has many networks, or one."""
        return "particles" in self.reads

    def origin(self) -> tuple[str, str]:
        """Where it is defined; a module that is reloaded may register it again."""
        return self.build.__module__, getattr(self.build, "__qualname__", "")


METHODS: dict[str, Method] = {}
Build = TypeVar("Build", bound=Callable[[Any], Any])


def method(
    name: str, description: str, *, label: str = "", family: list[str] = SUPERVISED, **options: Any
) -> Callable[[Build], Build]:
    """Register a function `Setup -> learner` under a name; options are the fields of `Method`."""

    def register(build: Build) -> Build:
        made = Method(name, label or name, description=description, build=build, **options)
        if name in METHODS and METHODS[name].origin() != made.origin():
            raise UserError(f"there is a method called {name!r} already: choose another name")
        METHODS[name] = made
        if name not in family:
            family.append(name)
        return build

    return register


def find_method(name: str, family: list[str] | None = None) -> Method:
    """A method by its name; with `family`, one of its methods."""
    known = list(METHODS) if family is None else [each for each in family if each in METHODS]
    if name not in known:
        unknown = "not a method for this benchmark:" if name in METHODS else "unknown method"
        hint = did_you_mean(name, known)
        raise UserError(f"{unknown} {name!r}{hint}: choose from {', '.join(known)}")
    return METHODS[name]


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Import the modules that register methods: these, and those of installed packages."""
    for name in modules:
        import_module(name)
    for point in entry_points(group=PLUGINS):
        try:
            point.load()
        except Exception as error:
            raise ValueError(
                f"the installed plug-in {point.name} ({point.value}) cannot be imported: "
                f"{type(error).__name__}: {error}; uninstall or fix it"
            ) from error
