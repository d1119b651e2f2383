"""The grid benchmark x method x order x seed: cells, their store, and how they are run."""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

if TYPE_CHECKING:
    from .benchmarks import BENCHMARKS
    from .cell import Cell
    from .grid import Grid, run_grid
    from .store import Store, StoreError

__all__ = ["BENCHMARKS", "Cell", "Grid", "Store", "StoreError", "run_grid"]

__getattr__, __dir__ = on_first_use(__name__)
