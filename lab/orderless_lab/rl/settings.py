"""PPO's numbers."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as validated

from orderless.errors import UserError

EXPERT_COPIES = 256  # more than ProcGen's 64: on a GPU this takes little longer

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Coefficient = Annotated[float, Field(ge=0.0, lt=math.inf)]


@validated(frozen=True, config=ConfigDict(strict=True))
@dataclass(frozen=True)
class PPOSettings:
    """Settings of PPO; the defaults are ProcGen's, for 64 environments and Adam with lr 5e-4."""

    steps: Count = 256
    """T, the steps in every environment between two updates."""
    epochs: Count = 3
    """The number of passes over the rollout in an update."""
    minibatches: Count = 8
    """The number of optimizer steps in an epoch."""
    discount: Share = 0.999
    """gamma."""
    trace: Share = 0.95
    """lambda of the advantage estimation."""
    clip: Positive = 0.2
    """eps: the ratio r is clipped to [1 - eps, 1 + eps]."""
    entropy_coefficient: Coefficient = 0.01
    """k_H, the weight of the policy's entropy."""
    value_coefficient: Coefficient = 0.5
    """k_V, the weight of half the squared error of the values."""
    clip_values: bool = True
    """Clip the change of the values to [-eps, eps] as well, as ProcGen's PPO does."""
    importance_limit: Positive = 2.0
    """The largest importance weight c = pi_i,old / mu; larger ones are clipped."""
    reward_limit: Positive = 10.0
    """The largest magnitude of a scaled reward; larger ones are clipped."""
    act: Literal["mixture", "episode"] = "mixture"
    """"mixture": every action from mu; "episode": one particle plays a whole episode."""
    weigh_by: Literal["loss", "policy"] = "loss"
    """"loss": the whole loss, in all epochs; "policy": the importance-weighted advantage, once."""


def rollouts_for(n_envs: int, steps: int | None = None) -> PPOSettings:
    """The defaults with rollouts of `steps`; without, of 256 or as many as make 64 x 256 in all."""
    if n_envs < 1 or (steps is not None and steps < 1):
        raise UserError(f"copies and rollout must be at least 1, got {n_envs} and {steps}")
    usual = PPOSettings()
    if steps is None:
        divisible = max(1, 64 * usual.steps // n_envs // usual.minibatches) * usual.minibatches
        steps = min(usual.steps, divisible)
    return PPOSettings(steps=steps)
