"""Writes the run directory beside it.

Run once with the version whose files are to be kept: `python tests/experiments/saved/make.py`.
Three finished cells, and one that was stopped in the middle of its third task.
"""

from pathlib import Path

from orderless.experiments import Grid, Store, run_grid
from orderless.experiments.grid import Report
from orderless.settings import find_preset

SMALL = {"particles": 2, "hidden": 2, "iterations": 12, "rb_features": 8, "rb_particles": 2}


def stop_after(limit: int) -> Report:
    taken = 0

    def tick(steps: int) -> None:
        nonlocal taken
        taken += steps
        if taken > limit:
            raise KeyboardInterrupt

    return Report(tick=tick)


if __name__ == "__main__":
    settings = find_preset("demo", "splitmnist").changed(**SMALL, ewc_tuned=2.0)
    store = Store(Path(__file__).parent / "run")
    table = "splitmnist", "domain", "demo"
    run_grid(Grid(*table, ("gd", "ewc-tuned+wpf", "rb"), 1, 1, settings), store)
    try:
        grid = Grid(*table, ("wpf",), 1, 1, settings)
        run_grid(grid, store, checkpoint_every=0, report=stop_after(30))
    except KeyboardInterrupt:
        (store.directory / ".lock").unlink()
