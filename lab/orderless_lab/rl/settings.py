"""PPO's numbers."""

import math
from dataclasses import dataclass, replace

from .games import whole_number

EXPERT_COPIES = 256  # more than ProcGen's 64: on a GPU this takes little longer


@dataclass(frozen=True)
class PPOSettings:
    """Settings of PPO; the defaults are ProcGen's, for 64 environments and Adam with lr 5e-4."""

    steps: int = 256
    """T, the steps in every environment between two updates."""
    epochs: int = 3
    """The number of passes over the rollout in an update."""
    minibatches: int = 8
    """The number of optimizer steps in an epoch."""
    discount: float = 0.999
    """gamma."""
    trace: float = 0.95
    """lambda of the advantage estimation."""
    clip: float = 0.2
    """eps: the ratio r is clipped to [1 - eps, 1 + eps]."""
    entropy_coefficient: float = 0.01
    """k_H, the weight of the policy's entropy."""
    value_coefficient: float = 0.5
    """k_V, the weight of half the squared error of the values."""
    clip_values: bool = True
    """Clip the change of the values to [-eps, eps] as well, as ProcGen's PPO does."""
    importance_limit: float = 2.0
    """The largest importance weight c = pi_i,old / mu; larger ones are clipped."""
    reward_limit: float = 10.0
    """The largest magnitude of a scaled reward; larger ones are clipped."""
    act: str = "mixture"
    """"mixture": every action from mu; "episode": one particle plays a whole episode."""
    weigh_by: str = "loss"
    """"loss": the whole loss, in all epochs; "policy": the importance-weighted advantage, once."""

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "minibatches"):
            whole_number(name, getattr(self, name), 1)
        for name in ("discount", "trace"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in ("clip", "importance_limit", "reward_limit"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("entropy_coefficient", "value_coefficient"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.act not in ("mixture", "episode"):
            raise ValueError(f"act must be 'mixture' or 'episode', got {self.act!r}")
        if self.weigh_by not in ("loss", "policy"):
            raise ValueError(f"weigh_by must be 'loss' or 'policy', got {self.weigh_by!r}")


def rollouts_for(n_envs: int, steps: int | None = None) -> PPOSettings:
    """The defaults with rollouts of `steps`; without, of 256 or as many as make 64 x 256 in all."""
    usual = PPOSettings()
    if steps is not None:
        return replace(usual, steps=whole_number("rollout", steps, 1))
    steps = 64 * usual.steps // whole_number("n_envs", n_envs, 1)
    divisible = max(1, steps // usual.minibatches) * usual.minibatches
    return replace(usual, steps=min(usual.steps, divisible))
