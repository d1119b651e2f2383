"""Advantages at the ends of episodes, and scaled rewards; test_plain_ppo.py has the recursion."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from orderless_lab.rl import RewardScaler, advantages


def test_termination_has_no_future_truncation_has_one_and_a_reset_is_no_experience() -> None:
    rewards = torch.tensor([[1.0], [0.0], [2.0]])
    values = torch.tensor([[[10.0], [20.0], [30.0], [40.0]]])
    yes = torch.tensor([[True], [False], [False]])
    no = torch.zeros(3, 1, dtype=torch.bool)
    valid = torch.tensor([[True], [False], [True]])
    for flags, first in (((yes, no), 1 - 10), ((no, yes), 1 + 0.5 * 20 - 10)):
        found = advantages(rewards, values, *flags, valid, discount=0.5, trace=0.9)
        assert found.flatten().tolist() == [first, 0, 2 + 20 - 30]
    with pytest.raises(ValueError, match=r"values must have shape \[N, 4, 1\]"):
        advantages(rewards, values[:, :3], no, no, valid, discount=1, trace=1)


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far() -> None:
    generator = np.random.default_rng(0)
    scaler = RewardScaler(2, 0.9, limit=10.0)
    returns: list[float] = []
    running = [0.0, 0.0]
    for t in range(20):
        rewards = 5 * generator.random(2)
        first = [t % 5 == 0, False]
        valid = [t % 5 != 4, True]
        scaled = scaler(rewards, np.array(first), np.array(valid))
        for e in range(2):
            if valid[e]:
                running[e] = (0.0 if first[e] else 0.9 * running[e]) + rewards[e]
                returns.append(running[e])
        # a pseudo-count of 1e-4 with mean 0 and variance 1 stands at the beginning
        count = 1e-4 + len(returns)
        squares = sum(value**2 for value in returns)
        variance = (1e-4 + squares) / count - (sum(returns) / count) ** 2
        expected = np.clip(rewards / np.sqrt(variance + 1e-8), -10, 10) * valid
        np.testing.assert_allclose(scaled, expected)
