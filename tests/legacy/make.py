"""Writes the files beside it: what the tree at 9e4f422 left on disk.

git archive 9e4f422 | tar -x -C /tmp/old && PYTHONPATH=/tmp/old/src python tests/legacy/make.py
"""

import json
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import orderless as ol
from orderless.cli import app
from orderless.experiments import Store

HERE = Path(__file__).parent
RUN = [
    *["run", "splitmnist", "--preset", "demo", "--methods", "gd,wpf", "--permutations", "2"],
    *["--particles", "2", "--set", "hidden=3", "--set", "iterations=4", "--set", "batch_size=16"],
    *["--set", "lr=0.3"],
    *["--device", "cpu", "--workers", "1", "--checkpoint-every", "0"],
]
CELL = "splitmnist-domain-demo-wpf-order1-seed0"
STEPS = 10  # of the cell's 20: in the middle of its third task


def make_filter() -> ol.WeightedParticleFilter:
    particles = ol.Ensemble(lambda: torch.nn.Linear(3, 2), 4, seed=1)
    return ol.WeightedParticleFilter(particles, torch.optim.Adam(particles.parameters(), lr=0.1))


def make_exact_filter() -> ol.RaoBlackwellizedFilter:
    features = ol.Ensemble(lambda: ol.features.RandomReLU(3, 6), 2, seed=1)
    return ol.RaoBlackwellizedFilter(features, classes=2)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 3, generator=generator), torch.arange(16) % 2


def learn(filter: ol.WeightedParticleFilter, exact: ol.RaoBlackwellizedFilter) -> None:
    (x, y), loss = data(), ol.per_particle(F.cross_entropy)
    for _ in range(3):
        filter.step(lambda: loss(filter.particles(x), y))
    exact.update(x, y)


def write_run() -> None:
    """A run, then its last cell once more, stopped after half of its steps."""
    folder = HERE / "run"
    shutil.rmtree(folder, ignore_errors=True)
    result = CliRunner().invoke(app, [*RUN, "--out", str(folder)])
    assert result.exit_code == 0, result.output
    (folder / "cells" / f"{CELL}.json").rename(HERE / "uninterrupted.json")
    (folder / "report.md").rename(HERE / "report.md")
    save = Store.save_checkpoint
    count = 0

    def stop(self: Store, name: str, state: dict) -> None:
        nonlocal count
        save(self, name, state)
        count += 1
        if count == STEPS:
            raise KeyboardInterrupt

    Store.save_checkpoint = stop  # type: ignore[method-assign]
    result = CliRunner().invoke(app, [*RUN, "--out", str(folder)])
    assert result.exit_code == 130, result.output
    older, _ = sorted((folder / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    older.unlink()
    for path in folder.iterdir():
        if path.name not in ("cells", "checkpoints", "snapshots"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_filters() -> None:
    filter, exact = make_filter(), make_exact_filter()
    learn(filter, exact)
    ol.save(HERE / "weighted.safetensors", filter)
    ol.save(HERE / "exact.safetensors", exact)
    x, _ = data()
    expected = {"weighted": filter.predict(x).tolist(), "exact": exact.predict(x).tolist()}
    learn(filter, exact)  # and what comes of it when it goes on
    expected |= {
        "weighted after": filter.predict(x).tolist(),
        "exact after": exact.predict(x).tolist(),
    }
    (HERE / "predictions.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_run()
    write_filters()
