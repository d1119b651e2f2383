"""Frozen dataclasses and JSON: `as_json` one way, `decode` the other.

A checksum says that a file is as it was written, not that what was written makes sense. `decode`
walks the types of a dataclass once, at the reader, so that nothing behind it has to ask again:
a number is finite and fits a double (10**400 does not), a list holds what it should. Keys that the
dataclass does not know are ignored, keys that are missing or null have its defaults.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

Json: TypeAlias = "bool | int | float | str | None | list[Json] | dict[str, Json]"
Setting: TypeAlias = bool | int | float | str | None
Decoder = Callable[[object], Any]
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
    """`value`, as JSON has it, as a `kind`; `Misfit` names the first field that is not of its type.

    Known are bool, int, float, str, None, object (anything), Literal, unions, lists, dictionaries
    with string keys, and dataclasses of these.
    """
    of_this_kind: Any = kind
    decoded: T = _decoder(of_this_kind)(value)
    return decoded


@cache
def _decoder(kind: Any) -> Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return lambda value: value
    if kind in (bool, str, types.NoneType):
        return lambda value: value if isinstance(value, kind) else _refuse()
    if kind in (int, float):
        return lambda value: _number(value, kind)
    if origin is Literal:
        return lambda value: value if value in arguments else _refuse()
    if origin in (Union, types.UnionType):
        return _any_of([_decoder(argument) for argument in arguments])
    if origin is list:
        item = _decoder(arguments[0])
        return lambda value: list(map(item, value)) if isinstance(value, list) else _refuse()
    if origin is dict:
        return _dictionary(_decoder(arguments[1]))
    return _dataclass(kind)


def _refuse() -> Any:
    raise Misfit


def _number(value: Any, kind: type[int] | type[float]) -> float:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    if whole or (kind is float and isinstance(value, float) and math.isfinite(value)):
        return kind(value)
    raise Misfit


def _any_of(decoders: list[Decoder]) -> Decoder:
    def decoded(value: object) -> Any:
        deepest = Misfit()
        for each in decoders:
            try:
                return each(value)
            except Misfit as misfit:
                deepest = max(deepest, misfit, key=lambda found: len(found.path))
        raise deepest

    return decoded


def _dictionary(item: Decoder) -> Decoder:
    def decoded(value: object) -> dict[str, object]:
        found = value if isinstance(value, dict) else _refuse()
        return {key: _named(key, item, part) for key, part in found.items()}

    return decoded


def _dataclass(kind: Any) -> Decoder:
    hints, missing = get_type_hints(kind), dataclasses.MISSING
    fields = [
        (f.name, f.default is f.default_factory is missing, _decoder(hints[f.name]))
        for f in dataclasses.fields(kind)
    ]

    def decoded(value: object) -> Any:
        found = value if isinstance(value, dict) else _refuse()
        return kind(
            **{
                name: _named(name, item, found.get(name))
                for name, needed, item in fields
                if needed or found.get(name) is not None
            }
        )

    return decoded


def _named(key: str, item: Decoder, value: object) -> Any:
    try:
        return item(value)
    except Misfit as misfit:
        raise Misfit(key, *misfit.path) from None
