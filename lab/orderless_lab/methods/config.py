"""Typed settings: a field's type defines its values, the string below it documents the field."""

import ast
import inspect
import itertools
import math
import textwrap
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; with `above`, `low` itself is excluded."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def refuse(self, key: str, value: float) -> None:
        """Raise `ValueError` for a number outside the range, or NaN."""
        if self.above and not self.low < value < math.inf:
            raise ValueError(f"{key} must be a positive number, got {value}")
        if not value >= self.low or value == math.inf:
            least = f"{self.low:.0f}"
            least = f"at least {least}" if isinstance(value, int) else f"{least} or larger"
            raise ValueError(f"{key} must be {least}, got {value}")
        if value > self.high:
            raise ValueError(f"{key} must be at most {self.high:,.0f}, got {value}")


Count = Annotated[int, Range(1, 10**9)]  # of steps or samples
Size = Annotated[int, Range(1, 10**6)]  # of what is held in memory at once
Seed = Annotated[int, Range(-(2**63), 2**63 - 1)]  # what `torch.Generator` accepts
Positive = Annotated[float, Range(0, above=True)]
Number = Annotated[float, Range(0)]  # 0 or larger

BOOLEANS = {"true": True, "false": False}
NEEDED = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Allowed:
    """The values that one setting may have."""

    base: type
    choices: tuple[str, ...] = ()
    numbers: Range | None = None
    optional: bool = False

    def check(self, key: str, value: Any) -> None:
        """Raise `ValueError` for any other value."""
        if value is None and self.optional:
            return
        number = self.base in (int, float)  # for which Python takes a bool, too
        fits = isinstance(value, int | self.base if number else self.base)
        if not fits or (number and isinstance(value, bool)):
            raise ValueError(f"{key} must be {self.needed}, got {value!r}")
        if self.numbers is not None:
            self.numbers.refuse(key, value)
        if self.choices and value not in self.choices:
            raise ValueError(f"{key} must be one of {', '.join(self.choices)}, got {value!r}")

    def parse(self, key: str, text: str) -> Any:
        """Convert a value given on the command line."""
        if text.lower() == "none" and self.optional:
            return None
        try:
            return BOOLEANS[text.lower()] if self.base is bool else self.base(text)
        except (KeyError, ValueError):
            raise ValueError(f"{key} must be {self.needed}, got {text!r}") from None

    @property
    def needed(self) -> str:
        return NEEDED.get(self.base, self.base.__name__)


def _allowed(config: type[Any]) -> dict[str, Allowed]:
    """The allowed values of each field of a configuration."""
    hints = typing.get_type_hints(config, include_extras=True)
    return {field.name: _allowed_by(hints[field.name]) for field in fields(config)}


def _allowed_by(hint: Any) -> Allowed:
    optional = type(None) in typing.get_args(hint)
    if optional:
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        return Allowed(str, typing.get_args(hint), optional=optional)
    if typing.get_origin(hint) is Annotated:
        base, numbers = typing.get_args(hint)[:2]
        return Allowed(base, numbers=numbers, optional=optional)
    return Allowed(hint, optional=optional)


# mypy does not accept dataclasses as arguments of cached functions
allowed: Callable[[type[Any]], dict[str, Allowed]] = lru_cache(_allowed)  # type: ignore[assignment]


@dataclass(frozen=True)
class Config:
    """The settings of a method. Values outside their types raise `ValueError`."""

    def __post_init__(self) -> None:
        for key, values in allowed(type(self)).items():
            values.check(key, getattr(self, key))


def sentences(config: type[Any]) -> dict[str, str]:
    """The strings below the fields of a configuration in its source, by key."""
    found: dict[str, str] = {}
    for one in reversed(config.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        assert isinstance(body, ast.ClassDef)
        for pair in itertools.pairwise(body.body):
            match pair:
                case ast.AnnAssign(ast.Name(key)), ast.Expr(ast.Constant(str(text))):
                    found[key] = inspect.cleandoc(text)
    return found
