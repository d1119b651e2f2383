"""Files: states as safetensors, records as JSON, atomic writes, one writer per directory."""

from .directory import (
    DamagedFile,
    Directory,
    StoreError,
    package_files,
    read_cell,
    user_cache,
    versions,
    write_atomically,
)
from .saving import INVALID_STATE, load, save

__all__ = [
    "INVALID_STATE", "DamagedFile", "Directory", "StoreError", "load", "package_files",
    "read_cell", "save", "user_cache", "versions", "write_atomically",
]  # fmt: skip
