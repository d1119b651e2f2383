"""Consolidation between recorded steps of PPO, and whole cells on the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lab.tests.rl.tiny_policies import record_of, tiny_cell, tiny_expert
from lab.tests.rl.walking import make_walker, walk


def test_a_penalty_that_came_after_a_recording_holds_as_on_the_cpu() -> None:
    ends = []
    for device in ("cpu", "cuda"):
        learner = make_walker(300.0, device)
        walk(learner, 0, rounds=3)
        walk(learner, 1, rounds=3)
        ends.append([p.detach().cpu() for p in learner.filter.particles.parameters()])
    # 72 steps of float32 in other kernels, on the same actions
    torch.testing.assert_close(*ends, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("course", "method", "precision"),
    [
        ("procgen-lifelong", "ppo+ewc+wpf", "bf16"),
        ("procgen-lifelong", "ppo+trac+wpf", "float32"),
        ("procgen-lifelong", "ppo+bootstrap", "bf16"),
        ("procgen-bc", "bc+wpf", "bf16"),
    ],
)
def test_a_cell_on_the_gpu(course: str, method: str, precision: str, tmp_path: Path) -> None:
    expert = str(tiny_expert(tmp_path))
    cell = tiny_cell(course, method, expert=expert, precision=precision, network="impala")
    record = record_of(cell, tmp_path, device="cuda")
    assert record["died_at"] is None and record["alive"] == 2
    assert np.isfinite(record["scores"]["accuracy"][-1]).all()
