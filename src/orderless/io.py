"""Files: `save` and `load`, one digest of tensors, and writes that are complete or absent.

Tensors are written as safetensors and the rest as JSON, never as a pickle. safetensors compares
every size in a file with the size of the file before it allocates memory. It does not notice a
flipped bit, so files have a checksum, and a format version.
"""

import errno
import hashlib
import importlib.util
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from .errors import DataError, MissingFile, WriteError

FORMAT = 2

# Errors that an invalid state can cause when it is read or loaded into an object.
INVALID_STATE = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    RuntimeError,  # RecursionError is one
    OverflowError,
)


def save(path: str | os.PathLike[str], obj: Any) -> Path:
    """Write an object's `state_dict()` (or a nested dict of tensors and plain values) to one file.

    The write is atomic: the file is complete or absent.

    >>> from tempfile import mkdtemp
    >>> path = ol.save(mkdtemp() + "/state.safetensors", {"weights": torch.ones(3), "steps": 7})
    >>> ol.load(path)
    {'weights': tensor([1., 1., 1.]), 'steps': 7}
    """
    path = Path(path)
    state = obj.state_dict() if hasattr(obj, "state_dict") else obj
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_encode(state, tensors, ""))
    about = {"format": FORMAT, "checksum": checksum(tree, tensors), "tree": tree}
    apart = {name: tensor.clone() for name, tensor in tensors.items()}  # they may share memory
    # one key, because safetensors writes several keys in any order: same content, same bytes
    write_atomically(path, serialize(apart, {"orderless": json.dumps(about)}))
    return path


def load(path: str | os.PathLike[str], into: Any = None) -> Any:
    """Read a file of `save`: return the nested state, or load it `into` an object and return that.

    >>> from tempfile import mkdtemp
    >>> path = ol.save(mkdtemp() + "/layer.safetensors", torch.nn.Linear(2, 1))
    >>> ol.load(path, into=torch.nn.Linear(2, 1))
    Linear(in_features=2, out_features=1, bias=True)
    """
    path = Path(path)
    if not os.path.lexists(path):
        raise MissingFile(f"there is no file {path}")
    if not path.is_file():  # reading a pipe would block
        raise DataError(f"{path} is not a file written by orderless.save")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["orderless"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}, and this version reads {FORMAT}")
        if about["checksum"] != checksum(about["tree"], tensors):
            raise ValueError("its checksum does not match")
        state = _decode(json.loads(about["tree"]), tensors)
    except (OSError, SafetensorError, *INVALID_STATE) as error:
        raise DataError(f"{path} is damaged or not written by orderless.save: {error}") from None
    if into is None:
        return state
    try:
        into.load_state_dict(state)
    except INVALID_STATE as error:
        raise DataError(f"{path} does not fit: {error}") from None
    return into


def digest(value: Any) -> str:
    """SHA-256 of tensors and plain values, nested as `save` takes them.

    The dtype, shape and numbers of a tensor count, its device and strides do not.

    >>> digest([1, torch.ones(2)]) == digest([1, torch.ones(1).expand(2)])
    True
    """
    tensors: dict[str, Tensor] = {}
    return checksum(json.dumps(_encode(value, tensors, "")), tensors)


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a text and of the name, dtype, shape and bytes of every tensor."""
    found = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _encode(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """A JSON tree in which tensors are replaced by their names and other types have a tag."""
    if isinstance(value, Tensor):
        if value.is_complex():
            return {"$complex": _encode(torch.view_as_real(value.resolve_conj()), tensors, name)}
        return {"$tensor": _put(value, tensors, name)}
    if isinstance(value, dict):
        keys = [_encode(key, tensors, "") for key in value]
        items = [_encode(item, tensors, f"{name}/{key}") for key, item in value.items()]
        return {"$dict": list(zip(keys, items, strict=True))}
    if isinstance(value, tuple):
        return {"$tuple": _encode(list(value), tensors, name)}
    if isinstance(value, list):
        return [_encode(item, tensors, f"{name}/{place}") for place, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"cannot save {name or 'this'}: a {type(value).__name__} is neither a tensor "
        "nor a plain value"
    )


def _put(tensor: Tensor, tensors: dict[str, Tensor], name: str) -> str:
    """Add a tensor under its name; the name."""
    if tensor.layout != torch.strided:
        raise TypeError(f"cannot save {name or 'this'}: a tensor is {tensor.layout}, not dense")
    while name in tensors:  # {"a": {"b": ...}, "a/b": ...}
        name += "'"
    tensors[name] = tensor.detach().contiguous().cpu()
    return name


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "$tensor":
        return tensors[content]
    inner = _decode(content, tensors)
    if tag == "$complex":
        return torch.view_as_complex(inner)
    if tag == "$dict":
        return dict(inner)
    if tag == "$tuple":
        return tuple(inner)
    raise ValueError(f"unknown tag {tag!r} in the file's description")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file, or leave what was there."""
    with new_file(path) as file:
        file.write(data)


@contextmanager
def new_file(path: Path, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """Open a file beside `path` that takes its name once the block has ended without an error.

    A link stays, and the file that it names is replaced.
    """
    check_replaceable(path)
    target = path.resolve()
    # a unique name, because another machine may be writing the same file
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise  # of another file, in the block
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        with suppress(OSError):  # as where there is no folder
            temporary.unlink()


def check_replaceable(path: Path) -> None:
    """Raise `WriteError` for a device, a pipe, a folder, or a link to one."""
    if path.is_dir():
        raise WriteError(errno.EISDIR, "it is a folder, name a file", str(path))
    if path.exists() and not path.is_file():
        raise WriteError(
            errno.EEXIST, "it is a device or a pipe, which a file must not replace", str(path)
        )


def user_cache() -> Path:
    """The user's cache folder of this package."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orderless"


def package_files(package: str, pattern: str) -> list[Path]:
    """Files of an installed package that match a pattern; the package is not imported."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations or [] if spec else []
    return [path for folder in folders for path in sorted(Path(folder).glob(pattern))]
