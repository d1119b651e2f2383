"""van de Ven's settings, shortened: the ranking of scenarios and methods that the literature finds.

`orderless run splitmnist --preset strong` is the long version. The bounds here are wide
enough for one seed and 3 % of the steps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orderless_lab.runs import Grid, Store, run_grid

pytestmark = pytest.mark.slow

BOUNDS = {
    "task": {"ewc": (0.90, 1.0), "lwf": (0.95, 1.0)},
    "domain": {"adam": (0.40, 0.80), "joint": (0.92, 1.0)},
    "class": {"adam": (0.15, 0.25), "joint": (0.88, 1.0)},
}


@pytest.mark.parametrize("scenario", BOUNDS)
def test_a_short_run_ranks_as_the_literature_does(scenario: str, tmp_path: Path) -> None:
    grid = Grid.plan(
        "splitmnist",
        "strong",
        variant=scenario,
        methods=list(BOUNDS[scenario]),
        seeds=1,
        iterations=60,
        fisher_samples=200,
        source="embedded",
    )
    store = Store(tmp_path)
    run_grid(grid, store)
    for record in store.finished().values():
        low, high = BOUNDS[scenario][record["method"]]
        average = np.mean(record["scores"]["particles"][-1])
        assert low <= average <= high, f"{scenario} {record['method']}: {average:.3f}"
