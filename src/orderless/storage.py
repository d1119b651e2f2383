"""`save` and `load`: safetensors for tensors, JSON for the rest, never pickle."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

FORMAT = 1


def save(path: str | os.PathLike[str], obj: Any) -> Path:
    """Write an object's `state_dict()` (or a nested dict of tensors and plain values) to one file.

    The file appears under its name only when it is complete.
    """
    path = Path(path)
    state = obj.state_dict() if hasattr(obj, "state_dict") else obj
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors, "")
    metadata = {"orderless": str(FORMAT), "tree": json.dumps(tree)}
    write_atomically(path, serialize(tensors, metadata))
    return path


def load(path: str | os.PathLike[str], into: Any = None) -> Any:
    """Read what `save` wrote: the nested state, or with `into` that object after loading it.

    >>> pf.load_state_dict(ol.load("filter.safetensors"))    # doctest: +SKIP
    """
    path = Path(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    if metadata.get("orderless") != str(FORMAT):
        raise ValueError(f"{path} was not written by this version of orderless.save")
    state = _decode(json.loads(metadata["tree"]), tensors)
    if into is None:
        return state
    try:
        into.load_state_dict(state)
    except (ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} does not fit: {error}") from None
    return into


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name, flush to the disk, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _encode(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """A JSON tree with tensors replaced by their names; non-JSON types carry a tag."""
    if isinstance(value, Tensor):
        while name in tensors:  # {"a": {"b": ...}, "a/b": ...}
            name += "'"
        tensors[name] = value.detach().contiguous().cpu().clone()
        return {"$tensor": name}
    if isinstance(value, dict):
        items = [
            [_encode(k, tensors, ""), _encode(v, tensors, f"{name}/{k}")] for k, v in value.items()
        ]
        return {"$dict": items}
    if isinstance(value, (list, tuple)):
        items = [_encode(v, tensors, f"{name}/{i}") for i, v in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"cannot save {name or 'this'}: a {type(value).__name__} is neither a tensor "
        "nor a plain value"
    )


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "$tensor":
        return tensors[content]
    if tag == "$dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in content}
    if tag == "$tuple":
        return tuple(_decode(v, tensors) for v in content)
    if tag == "$float":
        return float(content)
    raise ValueError(f"unknown tag {tag!r} in the file's description")
