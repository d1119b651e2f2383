"""Which levels of a game does plain PPO learn? The presets `gpu` and `gpu-12` were chosen by this.

    python benchmarks/procgen_levels.py starpilot --levels 0-19 [--network compact] [--workers 2]

Each level is learned alone, with the settings of `gpu` except for the network, from a seed that no
table uses. Prints normalised returns of a random policy and of PPO's last fifth of episodes, and
the gain; then the `--pick` levels of largest gain.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from orderless_lab.rl.experts import mean_return, random_policy
from orderless_lab.rl.games import GAMES, parse_levels
from orderless_lab.rl.networks import NETWORKS
from orderless_lab.runs import Cell, Store
from orderless_lab.suites import find_suite
from timing import machine, print_table

SEED = 100
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def measure(level: int, *, game: str, steps: int, network: str) -> tuple[int, float, float]:
    """The level, the return of a random policy, and PPO's return at the end."""
    torch.set_num_threads(1)
    precision = "bf16" if DEVICE == "cuda" else "float32"
    suite = find_suite("procgen-lifelong")
    settings = suite.preset("gpu", game).settings.changed(
        levels=str(level), steps_per_level=steps, network=network, precision=precision
    )
    cell = Cell("procgen-lifelong", game, "gpu", "ppo", 0, (0,), SEED, settings)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "run")
        store.prepare()
        tasks = suite.load(game, settings, SEED, folder, DEVICE)
        (final,) = suite.runner(cell, tasks, store).run().final_returns or [None]
    random = mean_return(random_policy(), game, level, 1, 32, 1, 0, DEVICE)["mean"]
    return level, random, random if final is None else final  # no episode ended: nothing learned


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("game", choices=GAMES)
    arguments.add_argument("--levels", default="0-19")
    arguments.add_argument("--steps", type=int, default=150_000)
    arguments.add_argument("--network", default="impala", choices=sorted(NETWORKS))
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--pick", type=int, default=12)
    options = arguments.parse_args()
    one = partial(measure, game=options.game, steps=options.steps, network=options.network)
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        found = list(pool.map(one, parse_levels(options.levels)))
    found.sort(key=lambda row: row[1] - row[2])
    print(f"{options.game}, {options.network}, {options.steps:,} steps, seed {SEED}; ", end="")
    print(f"{machine(torch.device(DEVICE))}\n")
    rows = [[str(k), f"{r:.3f}", f"{f:.3f}", f"{f - r:+.3f}"] for k, r, f in found]
    print_table(["level", "random", "PPO, last fifth", "gain"], rows)
    chosen = sorted(level for level, *_ in found[: options.pick])
    print(f"\n--levels {','.join(map(str, chosen))}")


if __name__ == "__main__":
    main()
