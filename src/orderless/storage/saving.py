"""`save` and `load`: safetensors for tensors, JSON for the rest, never pickle.

safetensors compares every size in a file with the size of the file before it allocates memory. It
does not notice a flipped bit, so files have a checksum, and a format version.
"""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from .directory import write_atomically

FORMAT = 2

# Errors that an invalid state can cause when it is read or loaded into an object.
INVALID_STATE = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(RuntimeError, OverflowError),  # RecursionError is a RuntimeError
)


def save(path: str | os.PathLike[str], obj: Any) -> Path:
    """Write an object's `state_dict()` (or a nested dict of tensors and plain values) to one file.

    The write is atomic: the file is complete or absent.
    """
    path = Path(path)
    state = obj.state_dict() if hasattr(obj, "state_dict") else obj
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors, "")
    text = json.dumps(tree)
    about = {"format": FORMAT, "checksum": checksum(text, tensors), "tree": text}
    # one key, because safetensors writes several keys in any order: same content, same bytes
    write_atomically(path, serialize(tensors, {"orderless": json.dumps(about)}))
    return path


def load(path: str | os.PathLike[str], into: Any = None) -> Any:
    """Read a file of `save`: return the nested state, or load it `into` an object and return that.

    >>> pf.load_state_dict(ol.load("filter.safetensors"))    # doctest: +SKIP
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file written by orderless.save")
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise ValueError(f"{path} is not a file written by orderless.save")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, *INVALID_STATE) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    if "orderless" not in metadata:
        raise ValueError(f"{path} was not written by orderless.save")
    try:
        about = json.loads(metadata["orderless"])
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}, and this version reads {FORMAT}")
        if about["checksum"] != checksum(about["tree"], tensors):
            raise ValueError("its checksum does not match")
        state = _decode(json.loads(about["tree"]), tensors)
    except INVALID_STATE as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if into is None:
        return state
    try:
        into.load_state_dict(state)
    except INVALID_STATE as error:
        raise ValueError(f"{path} does not fit: {error}") from None
    return into


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a text and of the name, dtype, shape and bytes of every tensor."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encode(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """A JSON tree in which tensors are replaced by their names and other types have a tag."""
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
