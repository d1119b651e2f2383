"""Run directories: records as checked JSON, one writer at a time."""

from .directory import DamagedFile, Directory, StoreError, read_cell, versions

__all__ = ["DamagedFile", "Directory", "StoreError", "read_cell", "versions"]
