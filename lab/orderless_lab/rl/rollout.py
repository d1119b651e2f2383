r"""Experience of T steps in E environments: scaled rewards, and advantages of N value functions.

Generalised advantage estimation (Schulman et al. 2016), one for every value function V_i:

    delta_t = r_t + gamma (1 - terminated_t) V(s_{t+1}) - V(s_t)
    A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1}

An episode ends by termination (the value of the future is 0) or by truncation (it is V of the true
last frame). With next-step resets that frame *is* s_{t+1}, the observation whose action is ignored.
The transition from it to the next episode's first frame is not experience: its advantage is 0 and
its mask is False.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from .environment import Array, Saved
from .mixture import Decision


class RewardScaler:
    """r -> clip(r / sqrt(Var(G) + 1e-8), -limit, limit), with G_t = gamma G_{t-1} + r_t.

    The variance is over all G seen so far in all environments, as in ProcGen's PPO. It belongs to
    one level: use a new scaler for the next. Transitions that reset are left out.
    """

    def __init__(self, n_envs: int, discount: float, limit: float = 10.0) -> None:
        self.discount = discount
        self.limit = limit
        self.running = np.zeros(n_envs)  # G, per environment
        # a pseudo-count, as the reference has: the first reward is divided by about 1
        self.count = 1e-4
        self.mean = 0.0
        self.variance = 1.0

    def __call__(self, rewards: Array, first: Array, valid: Array) -> Array:
        """Scale `rewards` `[E]`; `first` marks the steps that start an episode."""
        self.running = np.where(first, 0.0, self.running)
        self.running = np.where(valid, self.discount * self.running + rewards, self.running)
        self._include(self.running[valid])
        scaled = np.clip(rewards / np.sqrt(self.variance + 1e-8), -self.limit, self.limit)
        return np.where(valid, scaled, 0.0)

    def _include(self, values: Array) -> None:
        if not len(values):
            return
        count = self.count + len(values)
        mean = values.sum() / len(values)
        shift = mean - self.mean
        off = values - mean
        # equal to `values.var()`, which takes several times as long for a few values
        variance = (off * off).sum() / len(values)
        spread = self.variance * self.count + variance * len(values)
        spread += shift**2 * self.count * len(values) / count
        self.mean += float(shift * len(values) / count)
        self.count = count
        self.variance = float(spread / count)

    def state_dict(self) -> dict[str, object]:
        return {
            "running": torch.from_numpy(self.running.copy()),
            "moments": [self.count, self.mean, self.variance],
        }

    def load_state_dict(self, state: Saved) -> None:
        self.running = state["running"].numpy().copy()
        self.count, self.mean, self.variance = state["moments"]


def advantages(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    discount: float,
    trace: float,
) -> Tensor:
    """A `[N, T, E]` from `values` `[N, T + 1, E]` and `rewards`, flags `[T, E]`.

    `valid` is False at the transitions that reset. `discount` is gamma, `trace` lambda. The
    recursion is linear, so it is solved by doubling: log2(T) steps for all N, T and E together.
    """
    steps = rewards.shape[0]
    if values.shape[1:] != (steps + 1, rewards.shape[1]):
        raise ValueError(
            f"values must have shape [N, {steps + 1}, {rewards.shape[1]}], got {list(values.shape)}"
        )
    rewards = rewards.to(values.dtype)
    future = discount * (~terminated).to(values.dtype)
    total = rewards + future * values[:, 1:] - values[:, :-1]
    total = torch.where(valid, total, 0.0)
    # nothing is carried back across the end of an episode or from an invalid transition
    gain = discount * trace * (valid & ~terminated & ~truncated).to(values.dtype)
    reach = 1  # total[t] sums over t ... t + reach - 1, gain[t] multiplies over them
    while reach < steps:
        carried = gain[:-reach] * total[:, reach:]
        total = torch.cat([total[:, :-reach] + carried, total[:, -reach:]], 1)
        gain = torch.cat([gain[:-reach] * gain[reach:], gain[-reach:]], 0)
        reach *= 2
    return total


@dataclass(frozen=True)
class Rollout:
    """T steps of E environments, evaluated by N particles.

    `observations` `[T, E, ...]`, `actions` `[T, E]`, `log_policies` `[N, T, E]` (log pi_i,old of
    the action), `log_behaviour` `[T, E]` (log mu of the action), `values` `[N, T + 1, E]`, scaled
    `rewards` `[T, E]`, `terminated`, `truncated`, `valid` `[T, E]`, and the `log_weights` `[N]` at
    collection.
    """

    observations: Tensor
    actions: Tensor
    log_policies: Tensor
    log_behaviour: Tensor
    values: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    log_weights: Tensor

    @classmethod
    def of(
        cls,
        decisions: list[Decision],
        last_values: Tensor,
        rewards: list[Array],
        flags: list[tuple[Array, Array, Array]],
        log_weights: Tensor,
    ) -> Self:
        """From every step's decision, rewards and (terminated, truncated, valid)."""
        values = [decision.values for decision in decisions if decision.values is not None]
        scaled = torch.from_numpy(np.array(rewards))
        ends = torch.from_numpy(np.array(flags)).to(last_values.device)
        return cls(
            observations=torch.stack([decision.observations for decision in decisions]),
            actions=torch.stack([decision.actions for decision in decisions]),
            log_policies=torch.stack([decision.log_policies for decision in decisions], 1),
            log_behaviour=torch.stack([decision.log_behaviour for decision in decisions]),
            values=torch.stack([*values, last_values], 1),
            rewards=scaled.to(last_values),
            terminated=ends[:, 0],
            truncated=ends[:, 1],
            valid=ends[:, 2],
            log_weights=log_weights.clone(),
        )

    def advantages(self, discount: float, trace: float) -> Tensor:
        """Every particle's own A `[N, T, E]`."""
        flags = self.terminated, self.truncated, self.valid
        return advantages(self.rewards, self.values, *flags, discount=discount, trace=trace)
