"""Frozen dataclasses and JSON: `as_json` one way, `decode` the other.

A checksum says that a file is as it was written, not that what was written makes sense. `decode`
walks the types of a dataclass once, at the reader, so that nothing behind it has to ask again:
a number is finite and fits a double (10**400 does not), a list holds what it should. Keys that the
dataclass does not know are ignored, keys that are missing have its defaults.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

Json: TypeAlias = "bool | int | float | str | None | list[Json] | dict[str, Json]"
Setting: TypeAlias = bool | int | float | str | None
T = TypeVar("T")

LARGEST = 2**63  # of an integer


class Misfit(ValueError):
    """A value is not of its type; `path` leads to it."""

    def __init__(self, *path: str) -> None:
        super().__init__(".".join(path))
        self.path = path


def optional() -> Any:
    """A field that is left out of the JSON where it is None."""
    return dataclasses.field(default=None, metadata={"optional": True})


def as_json(value: object) -> Json:
    """Plain JSON; a number that is not finite becomes null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {
            field.name: as_json(item)
            for field, item in items
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
    """`value`, as JSON has it, as a `kind`; `Misfit` names the first field that is not of its type.

    Known are bool, int, float, str, None, object (anything), Literal, unions, lists, tuples of any
    length, dictionaries with string keys, and dataclasses of these.
    """
    of_this_kind: Any = kind
    decoded: T = _decoder(of_this_kind)(value)
    return decoded


@cache
def _decoder(kind: Any) -> Callable[[object], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return lambda value: value
    if kind in (bool, str, types.NoneType):
        return lambda value: value if isinstance(value, kind) else _refuse()
    if kind is int:
        return _integer
    if kind is float:
        return _number
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    if origin is Literal:
        return lambda value: value if value in arguments else _refuse()
    if origin in (Union, types.UnionType):
        return _union_decoder([_decoder(argument) for argument in arguments])
    if origin in (list, tuple):
        item = _decoder(arguments[0])
        return lambda value: origin(map(item, value)) if isinstance(value, list) else _refuse()
    if origin is dict:
        return _dictionary_decoder(_decoder(arguments[1]))
    raise TypeError(f"JSON cannot be decoded as {kind}")


def _refuse() -> Any:
    raise Misfit


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= LARGEST:
        raise Misfit
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit
    if isinstance(value, int) and abs(value) >= LARGEST or not math.isfinite(value):
        raise Misfit
    return float(value)


def _union_decoder(decoders: list[Callable[[object], Any]]) -> Callable[[object], Any]:
    def decoded(value: object) -> Any:
        deepest = Misfit()
        for each in decoders:
            try:
                return each(value)
            except Misfit as misfit:
                deepest = max(deepest, misfit, key=lambda found: len(found.path))
        raise deepest

    return decoded


def _dictionary_decoder(item: Callable[[object], Any]) -> Callable[[object], Any]:
    def decoded(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Misfit
        return {key: _named(key, item, part) for key, part in value.items()}

    return decoded


def _dataclass_decoder(kind: Any) -> Callable[[object], Any]:
    hints = get_type_hints(kind)
    fields = [
        (field.name, _has_default(field), _decoder(hints[field.name]))
        for field in dataclasses.fields(kind)
    ]

    def decoded(value: object) -> Any:
        if not isinstance(value, dict):
            raise Misfit
        found = {}
        for name, has_default, item in fields:
            if value.get(name) is not None or not has_default:  # null is as good as missing
                found[name] = _named(name, item, value.get(name))
        return kind(**found)

    return decoded


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _named(key: str, item: Callable[[object], Any], value: object) -> Any:
    try:
        return item(value)
    except Misfit as misfit:
        raise Misfit(key, *misfit.path) from None
