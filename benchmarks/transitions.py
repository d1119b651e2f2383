"""Collecting an expert's transitions: the number per second, and the time to read them.

    python benchmarks/transitions.py [--game starpilot] [--transitions 100000]

The first 2,000, which record the graphs, are not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from orderless_lab.rl.experts import load_expert
from orderless_lab.rl.games import GAMES
from orderless_lab.rl.transitions import collect, read_transitions
from timing import machine


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--game", default="starpilot", choices=GAMES)
    arguments.add_argument("--transitions", type=int, default=100_000)
    options = arguments.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    expert = load_expert(options.game)
    marks: list[tuple[int, float]] = []

    def tell(done: int) -> None:
        if not marks and done >= 2000:
            marks.append((done, time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "transitions"
        facts = collect(path, expert, 8, options.transitions, device=device, tell=tell)
        count = options.transitions - marks[0][0]
        rate = count / (time.perf_counter() - marks[0][1])
        begun = time.perf_counter()
        read_transitions(path)
        reading = time.perf_counter() - begun
    print(f"{options.game}, {facts['copies']} copies; {machine(device)}")
    print(f"{rate:,.0f} transitions a second; {options.transitions:,} read in {reading:.2f} s")


if __name__ == "__main__":
    main()
