"""Advantages at the ends of episodes, and scaled rewards; test_plain_ppo.py has the recursion."""

from __future__ import annotations

import pytest
import torch

from orderless_lab.rl import advantages


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
