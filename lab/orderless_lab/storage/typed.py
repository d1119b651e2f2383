"""Frozen dataclasses and JSON: `as_json` one way, `decode` the other.

A checksum shows that a file is as it was written, not that its content makes sense. `decode` checks
every value against the types of a dataclass, so that later code need not: a number is finite and
fits a double (10**400 does not), a list holds items of its type. Unknown keys are ignored; keys
that are missing or null have the dataclass's defaults.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

Json: TypeAlias = "bool | int | float | str | None | list[Json] | dict[str, Json]"
Setting: TypeAlias = bool | int | float | str | None
T = TypeVar("T")

LARGEST = 2**63  # of an integer


class Misfit(ValueError):
    """A value is not of its type; `path` holds the keys that lead to it."""

    def __init__(self, *path: str) -> None:
        super().__init__(".".join(path))
        self.path = path


def optional() -> Any:
    """A field that is left out of the JSON if it is None."""
    return dataclasses.field(default=None, metadata={"optional": True})


def as_json(value: object) -> Json:
    """Plain JSON; a number that is not finite becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {
            field.name: as_json(item)
            for field, item in fields
            if item is not None or not field.metadata.get("optional")
        }
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"a {type(value).__name__} has no place in JSON")


def decode(kind: type[T], value: object) -> T:
    """`value`, parsed from JSON, as a `kind`; `Misfit` names the first field of a wrong type.

    Kinds are bool, int, float, str, None, object (anything), Literal, unions, lists, dictionaries
    with string keys, and dataclasses of these.
    """
    decoded: T = _decode(kind, value)
    return decoded


def _decode(kind: Any, value: Any) -> Any:
    if kind in (bool, str, types.NoneType, object):
        if isinstance(value, kind):
            return value
        raise Misfit
    if kind in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
        if whole or (kind is float and isinstance(value, float) and math.isfinite(value)):
            return kind(value)
        raise Misfit
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, value)
    if origin is list and isinstance(value, list):
        return [_decode(arguments[0], item) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _decode_at(key, arguments[1], item) for key, item in value.items()}
    if origin is Literal and value in arguments:
        return value
    if origin is None and isinstance(value, dict):  # a dataclass
        given = {name for name, item in value.items() if item is not None}
        asked = [(name, hint) for name, hint, needed in _fields(kind) if needed or name in given]
        return kind(**{name: _decode_at(name, hint, value.get(name)) for name, hint in asked})
    raise Misfit


def _decode_at(key: str, kind: Any, value: object) -> Any:
    """`_decode`, with the key in the path of an error."""
    try:
        return _decode(kind, value)
    except Misfit as misfit:
        raise Misfit(key, *misfit.path) from None


def _decode_union(kinds: tuple[Any, ...], value: object) -> Any:
    """The first of several types that fits; of the errors, the one with the longest path."""
    deepest = Misfit()
    for kind in kinds:
        try:
            return _decode(kind, value)
        except Misfit as misfit:
            deepest = max(deepest, misfit, key=lambda found: len(found.path))
    raise deepest


@cache
def _fields(kind: Any) -> list[tuple[str, Any, bool]]:
    """The name and type of each field of a dataclass, and whether it has no default."""
    hints, missing = get_type_hints(kind), dataclasses.MISSING
    return [
        (field.name, hints[field.name], field.default is field.default_factory is missing)
        for field in dataclasses.fields(kind)
    ]
