"""Runs: cells of method x order x seed, the directory they are kept in, and how they are run."""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

if TYPE_CHECKING:
    from .cell import Cell
    from .frame import Run, load_run
    from .grid import Grid, run_grid
    from .store import Store, StoreError

__all__ = ["Cell", "Grid", "Run", "Store", "StoreError", "load_run", "run_grid"]

__getattr__, __dir__ = on_first_use(__name__)
