"""Behaviour cloning of an expert's actions over particles, and evaluation by playing.

Cloning is supervised learning: particle i's loss on a batch is the cross-entropy of its policy
against the expert's actions, so any filter of this library can be used.

A level's score is a return. `"accuracy"`, in analogy to the paper's test accuracy, is the weighted
mean of the particles' own returns, sum_i w_i R(pi_i); `"probs"` is the return of the mixture policy
sum_i w_i pi_i. Actions are sampled.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from orderless.ensemble import Ensemble, per_particle

from .environment import Array, Saved, VectorEnvironment, require_environment
from .keyed import permutation
from .mixture import Filter, MixturePolicy
from .networks import policy_logits

COMBINES = ("accuracy", "probs")


def cloning_loss(particles: Ensemble) -> Callable[[Tensor, Tensor], Tensor]:
    """`loss(observations [B, ...], actions [B]) -> [N]`: -E log pi_i(action | observation)."""
    cross_entropy = per_particle(F.cross_entropy)

    def loss(observations: Tensor, actions: Tensor) -> Tensor:
        return cross_entropy(policy_logits(particles(observations)), actions)

    return loss


class BehaviourCloning:
    """Fits a filter's particles to transitions, level after level.

    Batch k of a level depends on (seed, level, k) alone, so `learn` may be called in parts and
    resumes from the filter's state and the number of batches done.
    """

    def __init__(self, filter: Filter, *, batch_size: int = 256, seed: int = 0) -> None:
        self.batch_size = batch_size
        self.filter = filter
        self.seed = seed
        self._step = filter.compile(cloning_loss(filter.particles))

    def learn(
        self,
        observations: Tensor,
        actions: Tensor,
        *,
        level: int,
        start: int = 0,
        stop: int | None = None,
    ) -> Tensor:
        """Take steps `start` to `stop` (default: one pass) on `observations` `[M, ...]` uint8.

        Each pass uses the M transitions in another order, without a short last batch. Returns the
        losses before each step, `[stop - start, N]`.
        """
        count = len(observations)
        batches = count // self.batch_size  # in a pass
        if count and actions.min() < 0:  # torch's cross-entropy would leave -100 out
            raise ValueError(f"actions must be at least 0, got {int(actions.min())}")
        if not batches:
            raise ValueError(f"{count} transitions do not fill one batch of {self.batch_size}")
        particles = self.filter.particles
        losses = [torch.empty(0, particles.n, device=particles.device)]
        shuffled = -1
        for number in range(start, batches if stop is None else stop):
            if number // batches != shuffled:
                shuffled = number // batches
                order = permutation(self.seed, level, shuffled, count, observations.device)
                parts = order.split(self.batch_size)
            index = parts[number % batches]
            x = observations[index].to(particles.device)
            y = actions[index].long().to(particles.device)
            losses.append(self._step(x, y).loss_before.clone().unsqueeze(0))
        return torch.cat(losses)

    def check(self) -> None:
        """Raise if no particle is left."""
        self.filter.check(now=True)

    def state_dict(self) -> dict[str, object]:
        """The filter's state; the arguments of `learn` determine everything else."""
        return self.filter.state_dict()

    def load_state_dict(self, state: Saved) -> None:
        self.filter.load_state_dict(dict(state))


@dataclass(frozen=True)
class Score:
    """Returns of one evaluation and their `mean` (weighted, for `"accuracy"`).

    `episodes` `[E, K]`: the first K returns of every environment; `per_particle` `[N]`, with
    `"accuracy"` only: each particle's mean return, NaN if its weight was too small to play.
    """

    mean: float
    episodes: Array
    per_particle: Array | None


def play(
    filter: Filter,
    env: VectorEnvironment,
    *,
    combine: str = "probs",
    episodes: int = 1,
    seed: int = 0,
) -> Score:
    """Play `episodes` whole episodes in every environment and return their returns.

    With `combine="probs"` the mixture plays in every environment. With `"accuracy"` one particle
    plays in each environment, and the number of a particle's environments is proportional to its
    weight. Only the first episodes of each environment count, so that short ones are not favoured.
    Returns are normalised if the environment defines how. Episodes must end, by a time limit if
    need be, because `play` waits for all of them. The environment is reset afterwards.
    """
    return play_both(filter, env, combines=(combine,), episodes=episodes, seed=seed)[combine]


@torch.no_grad()
def play_both(
    filter: Filter,
    env: VectorEnvironment,
    *,
    combines: tuple[str, ...] = COMBINES,
    episodes: int = 1,
    seed: int = 0,
) -> dict[str, Score]:
    """`play` for all `combines` at once, each in an equal part of the environments."""
    require_environment(env)
    if not set(combines) <= set(COMBINES):
        raise ValueError(f"combine must be one of {', '.join(COMBINES)}, got {combines}")
    if env.n_envs % len(combines):
        raise ValueError(f"{env.n_envs} environments have no {len(combines)} equal parts")
    weights = filter.weights
    share = env.n_envs // len(combines)
    players = torch.cat([_players(weights, share, combine) for combine in combines])
    returns = env.normalize(_play(filter, env, players, episodes, seed))
    parts = zip(combines, np.split(returns, len(combines)), players.split(share), strict=True)
    return {combine: _score(combine, weights, part, who) for combine, part, who in parts}


def _players(weights: Tensor, count: int, combine: str) -> Tensor:
    """The player in each of `count` environments `[count]`: particle i, or N for the mixture."""
    if combine == "probs":
        return torch.full((count,), len(weights), device=weights.device)
    # quantiles of the weights: a particle with a weight of 1 / count or more is among them
    places = (torch.arange(count, device=weights.device) + 0.5) / count
    return torch.searchsorted(weights.cumsum(0), places.double(), right=True)


def _score(combine: str, weights: Tensor, returns: Array, players: Tensor) -> Score:
    """The mean return, or sum_i w_i R(pi_i) over the particles that have played."""
    if combine == "probs":
        return Score(float(returns.mean()), returns, None)
    shares = weights.cpu().numpy()
    own = np.full(len(shares), np.nan)
    for number in players.unique().tolist():
        own[number] = returns[players.cpu().numpy() == number].mean()
    played = ~np.isnan(own)
    mean = shares[played] @ own[played] / shares[played].sum()
    return Score(float(mean), returns, own)


def _play(
    filter: Filter, env: VectorEnvironment, players: Tensor, episodes: int, seed: int
) -> Array:
    """Raw returns `[E, K]`."""
    policy = MixturePolicy(filter, env.n_envs, env.actions, seed=seed, playing=players)
    finished = np.zeros(env.n_envs, dtype=np.int64)
    returns = np.zeros((env.n_envs, episodes))
    env.reset()
    while (finished < episodes).any():
        decision = policy(env.observations, env.first)
        info = env.step(decision.actions.cpu().numpy())[-1]
        counted = np.flatnonzero(env.ended & (finished < episodes))
        returns[counted, finished[counted]] = info["episode_return"][counted]
        finished[counted] += 1
    env.reset()  # so that the next rollout starts with whole episodes
    return returns
