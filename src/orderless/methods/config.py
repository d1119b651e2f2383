"""Settings as data: a field's type says what it may be, the sentence below it what it means."""

import ast
import inspect
import math
import textwrap
import typing
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; with `above`, `low` itself is not among them."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def refuse(self, key: str, value: Any) -> None:
        """Raise `ValueError` for a number outside; NaN is outside."""
        if self.above and not self.low < value < math.inf:
            raise ValueError(f"{key} must be a positive number, got {value}")
        if not value >= self.low or value == math.inf:
            least = f"{self.low:.0f}"
            least = f"at least {least}" if isinstance(value, int) else f"{least} or larger"
            raise ValueError(f"{key} must be {least}, got {value}")
        if value > self.high:
            raise ValueError(f"{key} must be at most {self.high:,.0f}, got {value}")


Count = Annotated[int, Range(1, 10**9)]
"""At least 1, and no more than can be counted to."""
Size = Annotated[int, Range(1, 10**6)]
"""How many of something are held in memory at once."""
Seed = Annotated[int, Range(-(2**63), 2**63 - 1)]
"""Any whole number that a generator takes."""
Positive = Annotated[float, Range(0, above=True)]
Number = Annotated[float, Range(0)]
"""0 or larger."""

BOOLEANS = {"true": True, "false": False}
NEEDED = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Allowed:
    """What the values of one setting may be."""

    base: type
    choices: tuple[str, ...] = ()
    numbers: Range | None = None
    optional: bool = False

    def check(self, key: str, value: Any) -> None:
        """Raise `ValueError` for anything else."""
        if value is None and self.optional:
            return
        if self.base in (int, float):
            if isinstance(value, bool) or not isinstance(value, int | self.base):
                raise ValueError(f"{key} must be {self.needed}, got {value!r}")
            if self.numbers is not None:
                self.numbers.refuse(key, value)
        elif not isinstance(value, self.base):
            raise ValueError(f"{key} must be {self.base.__name__}, got {value!r}")
        if self.choices and value not in self.choices:
            raise ValueError(f"{key} must be one of {', '.join(self.choices)}, got {value!r}")

    def parse(self, key: str, text: str) -> Any:
        """A value from the command line."""
        if text.lower() == "none" and self.optional:
            return None
        try:
            return BOOLEANS[text.lower()] if self.base is bool else self.base(text)
        except (KeyError, ValueError):
            raise ValueError(f"--set {key} needs {self.needed}, got {text!r}") from None

    @property
    def needed(self) -> str:
        return NEEDED.get(self.base, self.base.__name__)


def allowed(config: Any) -> dict[str, Allowed]:
    """By key, what a configuration's fields may be."""
    return _allowed(config)


@lru_cache  # apart: to mypy a dataclass, as an argument of what is cached, has no hash
def _allowed(config: Any) -> dict[str, Allowed]:
    hints = typing.get_type_hints(config, include_extras=True)
    return {field.name: _allowed_by(hints[field.name]) for field in fields(config)}


def _allowed_by(hint: Any) -> Allowed:
    options = [hint]
    if typing.get_origin(hint) not in (Annotated, typing.Literal):
        options = [each for each in typing.get_args(hint) or (hint,) if each is not type(None)]
    (base,), optional = options[:1], type(None) in typing.get_args(hint)
    if typing.get_origin(base) is typing.Literal:
        return Allowed(str, typing.get_args(base), optional=optional)
    if typing.get_origin(base) is Annotated:
        base, numbers = typing.get_args(base)[:2]
        return Allowed(base, numbers=numbers, optional=optional)
    return Allowed(base, optional=optional)


@dataclass(frozen=True)
class Config:
    """A few settings. Bad values are refused when one is made."""

    def __post_init__(self) -> None:
        for key, values in allowed(type(self)).items():
            values.check(key, getattr(self, key))


def sentences(config: Any) -> dict[str, str]:
    """By key, what stands below a configuration's fields in its source."""
    found: dict[str, str] = {}
    for one in reversed(config.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found
