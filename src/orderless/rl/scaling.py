"""Rewards divided by the running standard deviation of discounted returns."""

import numpy as np
import torch

from .environment import Array, Saved


class RewardScaler:
    """r -> clip(r / sqrt(Var(G) + 1e-8), -limit, limit), with G_t = gamma G_{t-1} + r_t.

    The variance is over all G seen so far in all environments, as in ProcGen's PPO. It belongs to
    one level: use a new scaler for the next. Transitions that reset are left out.
    """

    def __init__(self, n_envs: int, discount: float, limit: float = 10.0) -> None:
        self.discount, self.limit = discount, limit
        self.running = np.zeros(n_envs)  # G, per environment
        # a pseudo-count, as the reference has: the first reward is divided by about 1
        self.count, self.mean, self.variance = 1e-4, 0.0, 1.0

    def __call__(self, rewards: Array, first: Array, valid: Array) -> Array:
        """Scale `rewards` `[E]`; `first` marks the steps that start an episode."""
        self.running = np.where(first, 0.0, self.running)
        self.running = np.where(valid, self.discount * self.running + rewards, self.running)
        self._include(self.running[valid])
        scaled = np.clip(rewards / np.sqrt(self.variance + 1e-8), -self.limit, self.limit)
        return np.where(valid, scaled, 0.0)

    def _include(self, values: Array) -> None:
        """Update the running mean and variance by `values`."""
        if not len(values):
            return
        count, mean = self.count + len(values), values.sum() / len(values)
        shift, off = mean - self.mean, values - mean
        # equal to `values.var()`, which takes several times as long for a few values
        variance = (off * off).sum() / len(values)
        spread = self.variance * self.count + variance * len(values)
        spread += shift**2 * self.count * len(values) / count
        self.mean += float(shift * len(values) / count)
        self.count, self.variance = count, float(spread / count)

    def state_dict(self) -> dict[str, object]:
        return {
            "running": torch.from_numpy(self.running.copy()),
            "moments": [self.count, self.mean, self.variance],
        }

    def load_state_dict(self, state: Saved) -> None:
        if state["running"].shape != self.running.shape:
            raise ValueError(
                f"this state is of {len(state['running'])} environments, not {len(self.running)}"
            )
        self.running = state["running"].numpy().copy()
        self.count, self.mean, self.variance = state["moments"]
