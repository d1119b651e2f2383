"""The grid benchmark x method x order x seed: cells, their store, and how they are run."""

from .benchmarks import BENCHMARKS
from .course import Cell
from .grid import Grid, run_grid
from .store import Store, StoreError

__all__ = ["BENCHMARKS", "Cell", "Grid", "Store", "StoreError", "run_grid"]
