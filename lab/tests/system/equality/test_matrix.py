"""What equals what: every promise of the matrix in docs/results/equality.md, and its figures.

    ORDERLESS_EQUALITY=lab/results/equality.json python -m pytest lab/tests/system/equality

writes what was measured; `make results` puts it into the page.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.system.equality.subjects import (
    ROWS,
    TASKS,
    difference,
    fitted,
    learn,
    make,
    result,
    task,
)

import orderless as ol

pytestmark = pytest.mark.slow

ON_GPU = "CPU against GPU"
BIT = (0.0, 0.0)  # what was learned and what is answered, to the bit
SUMS_ONLY = (0.0, 1e-9)  # sums to the bit; heads are solved by other kernels, in float64
NO = None  # not promised, only measured

# in the order of ROWS; where a column has no entry, the learner cannot do that
PROMISED: dict[str, list[Any]] = {
    "batch size": [BIT, BIT, NO, NO, NO],
    "order of samples": [BIT, BIT, NO, NO, NO],
    "order of tasks": [BIT, BIT, BIT, NO, NO],
    "merge tree": [BIT, BIT, BIT],
    "threads": [SUMS_ONLY, NO, NO, NO, NO],
    "processes": [BIT, BIT, BIT, BIT, BIT],
    ON_GPU: [SUMS_ONLY, NO, NO, NO, NO],
    "x86 kernels": [SUMS_ONLY, NO, NO, NO, NO],
    "save, load, resume": [BIT, BIT, BIT, BIT, BIT],
    "deletion": [BIT, BIT, BIT],
}
# what is only measured, for the page, is no test
CELLS = [
    (row, column, promise)
    for column, promises in PROMISED.items()
    for row, promise in zip(ROWS, promises, strict=False)
    if promise is not NO or "ORDERLESS_EQUALITY" in os.environ
]


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return {row: result(fitted(row)) for row in ROWS}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """The results of another process, by its options and environment; each is run once."""
    folder, found = tmp_path_factory.mktemp("processes"), {}

    def run(column: str, *options: str, **environment: str) -> Any:
        key = repr((options, environment))
        if key not in found:
            out, rows = folder / f"{len(found)}.pt", [row for row, c, _ in CELLS if c == column]
            command = [
                sys.executable,
                "-m",
                "lab.tests.system.equality.subjects",
                str(out),
                *rows,
                *options,
            ]
            subprocess.run(command, check=True, env={**os.environ, **environment})
            found[key] = torch.load(out)
        return found[key]

    return run


def variants(row: str, column: str, tmp_path: Path, elsewhere: Any) -> Iterator[Any]:
    """Results that the column compares with the reference."""
    if column == "batch size":
        yield from (result(fitted(row, batch=size)) for size in (7, 33, 120))
    elif column == "order of samples":
        learner = make(row)
        for number in TASKS:
            order = torch.randperm(120, generator=torch.Generator().manual_seed(number))
            learn(learner, tuple(part[order] for part in task(number)))
        yield result(learner)
    elif column == "order of tasks":
        yield from (result(fitted(row, tasks=tasks)) for tasks in [(2, 0, 1), (1, 2, 0)])
    elif column == "merge tree":
        a, b, c = (fitted(row, tasks=[number]) for number in TASKS)
        yield from (result(merged) for merged in [(a + b) + c, c + (b + a), (a + c) + b])
    elif column == "threads":
        # passive: where other tests have the second core, threads that spin take many times as long
        yield elsewhere(column, "--threads", "2", OMP_WAIT_POLICY="passive")[row]
    elif column == "processes":
        yield elsewhere(column)[row]
    elif column == ON_GPU:
        yield elsewhere(column, "--device", "cuda")[row]
    elif column == "x86 kernels":
        for kind in ("default", "avx2"):
            yield elsewhere(column, ATEN_CPU_CAPABILITY=kind)[row]
    elif column == "save, load, resume":
        ol.save(tmp_path / "half.safetensors", fitted(row, tasks=TASKS[:2]))
        learner = make(row)
        ol.load(tmp_path / "half.safetensors", into=learner)
        learn(learner, task(TASKS[2]))
        yield result(learner)
    elif column == "deletion":
        yield result(fitted(row, tasks=[3, *TASKS]) - fitted(row, tasks=[3]))
        if row != "product":
            learner = fitted(row, tasks=[0, 3, 1, 2])
            learner.forget(*task(3))
            yield result(learner)


@pytest.mark.parametrize(("row", "column", "promise"), [c for c in CELLS if c[1] != ON_GPU])
def test_what_is_promised_holds(
    row: str, column: str, promise: Any, reference: Any, elsewhere: Any, tmp_path: Path
) -> None:
    check(row, column, promise, reference, elsewhere, tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(("row", "column", "promise"), [c for c in CELLS if c[1] == ON_GPU])
def test_the_gpu_holds_what_is_promised(
    row: str, column: str, promise: Any, reference: Any, elsewhere: Any, tmp_path: Path
) -> None:
    check(row, column, promise, reference, elsewhere, tmp_path)


def check(
    row: str, column: str, promise: Any, reference: Any, elsewhere: Any, folder: Path
) -> None:
    found = [
        difference(reference[row], other) for other in variants(row, column, folder, elsewhere)
    ]
    worst = {name: max(each[name] for each in found) for name in found[0]}
    write_down(row, column, promise, worst)
    if promise is not NO:
        assert worst["learned"] <= promise[0] and worst["answered"] <= promise[1], worst


def test_the_comparison_can_tell(reference: Any) -> None:
    """One sample more is another result, for every learner."""
    for row in ROWS:
        learner = fitted(row)
        if row != "product":
            learn(learner, tuple(part[:1] for part in task(5)))
            assert difference(reference[row], result(learner))["learned"] > 0


def write_down(row: str, column: str, promise: Any, worst: dict[str, float]) -> None:
    """Into the file that the page is made of, if one is named."""
    if "ORDERLESS_EQUALITY" not in os.environ:
        return
    path = Path(os.environ["ORDERLESS_EQUALITY"])
    content = json.loads(path.read_text()) if path.exists() else {"equality": {}, "machines": {}}
    cells = content["equality"].setdefault(column, {})
    cells[row] = {"promised": promise, **worst}
    where = "GPU" if torch.cuda.is_available() else "CPU"
    name = torch.cuda.get_device_name() if where == "GPU" else platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    content["machines"][where] = f"{name} ({capability}), torch {torch.__version__}"
    path.write_text(json.dumps(content, indent=1) + "\n")
