"""Lifelong PPO on three cart-poles in all six orders: the effect of particles and their weights.

    python benchmarks/carts.py [--seeds 3] [--steps 16384] [--particles 8] [--workers 2]

Unlike ProcGen, this is small enough for every order and several seeds on two cores. The carts are
Gymnasium's own, one with a pole four times as long, and one with its controls exchanged, on which
the policy of the first is wrong. Two scores, as shares of the 500 steps that an episode can last:
the mean return while a cart is learned, over ten equal parts of its steps, and the return of the
acting mixture on every cart after the last one. Differences are paired over orders.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import permutations, product
from multiprocessing import get_context

import gymnasium
import numpy as np
import torch
from torch import nn

import orderless as ol
from orderless import metrics
from orderless_lab.rl import (
    PPO,
    ActorCritic,
    GymnasiumLevels,
    PPOSettings,
    play,
)
from orderless_lab.runs.procgen import binned_returns
from timing import machine, print_table

CARTS = ({}, {"length": 2.0, "polemass_length": 0.2}, {"force_mag": -10.0})
METHODS = ("ppo", "averaging", "weighted", "weighted by policy")
COPIES, LONGEST = 8, 500


class Balancer(ActorCritic):
    def __init__(self, activation: type[nn.Module] = nn.Tanh) -> None:
        body = nn.Sequential(nn.Linear(4, 64), activation(), nn.Linear(64, 64), activation())
        super().__init__(body, features=64, actions=2, value=True)


def carts(seed: int) -> GymnasiumLevels:
    levels = []
    for changes in CARTS:
        env = gymnasium.make_vec("CartPole-v1", COPIES, vectorization_mode="sync")
        for name, value in changes.items():
            env.set_attr(name, value)
        levels.append(env)
    return GymnasiumLevels(levels, seed=seed)


def learner(
    method: str, seed: int, particles: int, network: Callable[[], nn.Module] = Balancer
) -> PPO:
    ensemble = ol.Ensemble(network, 1 if method == "ppo" else particles, seed=seed)
    kind = {
        "ppo": ol.GradientDescent,
        "averaging": ol.AveragingParticles,
        "weighted": ol.WeightedParticleFilter,
        "weighted by policy": ol.WeightedParticleFilter,
    }[method]
    optimizer = torch.optim.Adam(ensemble.parameters(), lr=1e-3, eps=1e-5)
    weigh_by = "policy" if method == "weighted by policy" else "loss"
    settings = PPOSettings(steps=128, epochs=4, minibatches=4, discount=0.99, weigh_by=weigh_by)
    return PPO(kind(ensemble, optimizer, max_grad_norm=0.5), carts(seed), settings, seed=seed)


def learn(ppo: PPO, level: int, steps: int) -> float:
    """Learn one cart; the mean return over ten equal parts of the steps, as a share of 500."""
    ppo.switch(level)
    begun = ppo.steps
    ppo.learn(steps)
    ended = [(episode.step - begun, episode.value) for episode in ppo.take_episodes()]
    places, returns = [place for place, _ in ended], np.array([value for _, value in ended])
    found = binned_returns(places, returns, ppo.steps - begun, 10)
    return float(np.mean([mean for mean in found if mean is not None])) / LONGEST


def run(
    method: str, order: tuple[int, ...], seed: int, *, steps: int, particles: int
) -> np.ndarray:
    """Scores `[2, carts]`: while learning, and after the last cart."""
    torch.set_num_threads(1)
    ppo = learner(method, seed, particles)
    scores = np.zeros((2, len(CARTS)))
    for level in order:
        scores[0, level] = learn(ppo, level, steps)
    for level in order:
        ppo.env.switch(level)
        scores[1, level] = play(ppo.filter, ppo.env, episodes=2, seed=seed).mean / LONGEST
    ppo.env.close()
    return scores


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=16_384)
    arguments.add_argument("--particles", type=int, default=8)
    arguments.add_argument("--workers", type=int, default=2)
    options = arguments.parse_args()
    orders = list(permutations(range(len(CARTS))))
    cells = list(product(METHODS, orders, range(options.seeds)))
    one = partial(run, steps=options.steps, particles=options.particles)
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        found = list(pool.map(one, *zip(*cells, strict=True)))
    # S[score, method, seed, order, cart]
    grid = np.array(found).reshape(len(METHODS), len(orders), options.seeds, 2, len(CARTS))
    grid = grid.transpose(3, 0, 2, 1, 4)
    print(
        f"{options.particles} particles, {options.steps:,} steps a cart, {len(orders)} orders x ",
        end="",
    )
    print(f"{options.seeds} seeds; {machine(torch.device('cpu'))}")
    for name, scores in zip(("while learning", "after the last cart"), grid, strict=True):
        rows = []
        for method, ours in zip(METHODS, scores, strict=True):
            versus = [metrics.paired_difference(ours, scores[METHODS.index(other)])
                      for other in ("ppo", "averaging")]  # fmt: skip
            rows.append(
                [method, f"{metrics.average(ours):.3f}", f"{metrics.order_variance(ours):.4f}",
                 f"{metrics.seed_variance(ours):.4f}",
                 *(f"{d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]" for d in versus)]
            )  # fmt: skip
        print(f"\n{name}\n")
        print_table(
            ["method", "average", "order variance", "seed variance", "- ppo", "- averaging"], rows
        )


if __name__ == "__main__":
    main()
