"""Advantages of N value functions at once, against the recursion written as a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from orderless_lab.rl import RewardScaler, advantages


def by_loop(
    rewards: Tensor, values: Tensor, terminated: Tensor, ended: Tensor, valid: Tensor
) -> Tensor:
    """One value function `[T + 1]` in one environment, step by step from the end."""
    result = torch.zeros(len(rewards), dtype=values.dtype)
    following = 0.0
    for t in reversed(range(len(rewards))):
        if not valid[t]:
            following = 0.0
            continue
        future = 0.0 if terminated[t] else 0.9 * float(values[t + 1])
        delta = float(rewards[t]) + future - float(values[t])
        following = delta + (0.0 if ended[t] else 0.9 * 0.8 * following)
        result[t] = following
    return result


@pytest.mark.parametrize("steps", [1, 2, 7, 33])
def test_all_advantages_equal_the_loop(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    rewards = torch.randn(steps, 5, generator=generator, dtype=torch.float64)
    values = torch.randn(3, steps + 1, 5, generator=generator, dtype=torch.float64)
    kind = torch.randint(6, (steps, 5), generator=generator)
    terminated = kind == 0
    truncated = kind == 1
    valid = torch.ones_like(terminated)
    for t in range(1, steps):  # the step after an end resets, and nothing ends with it
        valid[t] = ~((terminated | truncated)[t - 1] & valid[t - 1])
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
    ours = advantages(rewards, values, terminated, truncated, valid, discount=0.9, trace=0.8)
    for i in range(3):
        for e in range(5):
            flags = terminated[:, e], (terminated | truncated)[:, e], valid[:, e]
            loop = by_loop(rewards[:, e], values[i, :, e], *flags)
            torch.testing.assert_close(ours[i, :, e], loop, atol=1e-12, rtol=0)


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
