"""Advantages of N value functions at once, against the recursion written as a loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orderless_lab.rl import RewardScaler, advantages


def by_loop(
    rewards: Tensor, values: Tensor, terminated: Tensor, ended: Tensor, valid: Tensor
) -> Tensor:
    """One value function `[T + 1]` in one environment, step by step from the end."""
    result, following = torch.zeros(len(rewards), dtype=values.dtype), 0.0
    for t in reversed(range(len(rewards))):
        if not valid[t]:
            following = 0.0
            continue
        future = 0.0 if terminated[t] else 0.9 * float(values[t + 1])
        delta = float(rewards[t]) + future - float(values[t])
        following = delta + (0.0 if ended[t] else 0.9 * 0.8 * following)
        result[t] = following
    return result


@pytest.mark.parametrize("steps", [1, 2, 7, 16, 33])
def test_all_advantages_equal_the_loop(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    n, n_envs = 3, 5
    rewards = torch.randn(steps, n_envs, generator=generator, dtype=torch.float64)
    values = torch.randn(n, steps + 1, n_envs, generator=generator, dtype=torch.float64)
    kind = torch.randint(6, (steps, n_envs), generator=generator)
    terminated, truncated = kind == 0, kind == 1
    valid = torch.ones_like(terminated)
    for t in range(1, steps):  # the step after an end resets, and nothing ends with it
        valid[t] = ~((terminated | truncated)[t - 1] & valid[t - 1])
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
    ours = advantages(rewards, values, terminated, truncated, valid, discount=0.9, trace=0.8)
    for i in range(n):
        for e in range(n_envs):
            flags = terminated[:, e], (terminated | truncated)[:, e], valid[:, e]
            loop = by_loop(rewards[:, e], values[i, :, e], *flags)
            torch.testing.assert_close(ours[i, :, e], loop, atol=1e-12, rtol=0)


def test_termination_has_no_future_truncation_has_one_and_a_reset_is_no_experience() -> None:
    rewards = torch.tensor([[1.0], [0.0], [2.0]])
    values = torch.tensor([[[10.0], [20.0], [30.0], [40.0]]])
    yes, no = torch.tensor([[True], [False], [False]]), torch.zeros(3, 1, dtype=torch.bool)
    valid = torch.tensor([[True], [False], [True]])
    options = {"discount": 0.5, "trace": 0.9}
    after_end = advantages(rewards, values, yes, no, valid, **options)
    assert after_end.flatten().tolist() == [1 - 10, 0, 2 + 20 - 30]
    after_limit = advantages(rewards, values, no, yes, valid, **options)
    assert after_limit.flatten().tolist() == [1 + 0.5 * 20 - 10, 0, 2 + 20 - 30]


def test_values_of_the_wrong_shape_are_refused() -> None:
    flags = torch.zeros(4, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"values must have shape \[N, 5, 2\]"):
        advantages(
            torch.zeros(4, 2), torch.zeros(3, 4, 2), flags, flags, ~flags, discount=1, trace=1
        )


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far() -> None:
    generator = torch.Generator().manual_seed(0)
    scaler, returns, running = RewardScaler(2, 0.9, limit=10.0), [], [0.0, 0.0]
    for t in range(20):
        rewards = (5 * torch.rand(2, generator=generator, dtype=torch.float64)).numpy()
        first = torch.tensor([t % 5 == 0, False]).numpy()
        valid = torch.tensor([t % 5 != 4, True]).numpy()
        scaled = scaler(rewards, first, valid)
        for e in range(2):
            if valid[e]:
                running[e] = (0.0 if first[e] else 0.9 * running[e]) + rewards[e]
                returns.append(running[e])
        everything = torch.tensor(returns, dtype=torch.float64)
        # a pseudo-count of 1e-4 with mean 0 and variance 1 stands at the beginning
        count = 1e-4 + len(returns)
        mean = everything.sum() / count
        variance = (1e-4 + everything.square().sum()) / count - mean**2
        expected = torch.from_numpy(rewards) / (variance + 1e-8).sqrt()
        expected = torch.where(torch.from_numpy(valid), expected.clamp(-10, 10), 0.0)
        torch.testing.assert_close(torch.from_numpy(scaled), expected)
