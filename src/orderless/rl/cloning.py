"""Behaviour cloning of an expert's actions over particles, and play to measure what it is worth.

Cloning is supervised learning: particle i's loss on a batch is the cross-entropy of its policy
against the expert's actions, so any filter of this library learns it.

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

from ..filters.base import ParticleFilter
from ..filters.step import SteppedFilter
from ..particles import Ensemble, per_particle
from .environment import Array, Saved, VectorEnvironment, require_environment
from .games import whole_number
from .keyed import ACTION, Gumbels, permutation
from .mixture import mixture_log_probabilities
from .networks import policy_logits, require_actions
from .staging import Recorded, Staging

COMBINES = ("accuracy", "probs")


def cloning_loss(particles: Ensemble) -> Callable[[Tensor, Tensor], Tensor]:
    """`loss(observations [B, ...], actions [B]) -> [N]`: -E log pi_i(action | observation)."""
    cross_entropy = per_particle(F.cross_entropy)

    def loss(observations: Tensor, actions: Tensor) -> Tensor:
        return cross_entropy(policy_logits(particles(observations)), actions)

    return loss


class BehaviourCloning:
    """Fits a filter's particles to transitions, level after level.

    A level's batches depend on (seed, level) and not on when the level comes. `learn` may be called
    in pieces: batch k is the same whoever computed batch k - 1, so a run resumes from the filter's
    state and the number of batches done.
    """

    def __init__(self, filter: SteppedFilter, *, batch_size: int = 256, seed: int = 0) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.filter, self.batch_size, self.seed = filter, batch_size, seed
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

        Each pass goes through all M transitions in an order of its own, without a short last batch.
        Returns the losses before each step, `[stop - start, N]`.
        """
        observations, actions = torch.as_tensor(observations), torch.as_tensor(actions)
        a_pass = len(observations) // self.batch_size
        if len(observations) != len(actions):
            raise ValueError(f"{len(observations)} observations but {len(actions)} actions")
        if actions.is_floating_point():
            raise TypeError(f"actions must be whole numbers, got {actions.dtype}")
        if len(actions) and actions.min() < 0:
            raise ValueError(f"actions must be at least 0, got {int(actions.min())}")
        if whole_number("start", start) < 0:
            raise ValueError(f"start must be at least 0, got {start}")
        if a_pass == 0:
            raise ValueError(
                f"{len(observations)} transitions do not fill one batch of {self.batch_size}"
            )
        device = self.filter.particles.device
        losses, order, current = [], torch.empty(0), -1
        for number in range(start, a_pass if stop is None else stop):
            if number // a_pass != current:
                current = number // a_pass
                count = len(observations)
                order = permutation(self.seed, level, current, count, observations.device)
            place = number % a_pass * self.batch_size
            index = order[place : place + self.batch_size]
            batch = observations[index].to(device), actions[index].long().to(device)
            losses.append(self._step(*batch).loss_before)
        return torch.stack(losses) if losses else torch.empty(0, self.filter.particles.n)

    def check(self) -> None:
        """Raise if no particle is left."""
        self.filter.check(now=True)

    def state_dict(self) -> dict[str, object]:
        """The filter's: the rest is in the numbers that `learn` is called with."""
        return self.filter.state_dict()

    def load_state_dict(self, state: Saved) -> None:
        self.filter.load_state_dict(dict(state))


@dataclass(frozen=True)
class Score:
    """Returns of one evaluation: `mean` (weighted, for `"accuracy"`), and where it comes from.

    `episodes` `[E, K]`: every environment's first K returns; `per_particle` `[N]`: each particle's
    mean return, only with `"accuracy"`, NaN of a particle too light to have played.
    """

    mean: float
    episodes: Array
    per_particle: Array | None


def play(
    filter: ParticleFilter,
    env: VectorEnvironment,
    *,
    combine: str = "probs",
    episodes: int = 1,
    normalize: bool = True,
    seed: int = 0,
) -> Score:
    """Play `episodes` whole episodes in every environment and return what they brought.

    With `combine="probs"` the mixture plays everywhere. With `"accuracy"` every environment has a
    particle of its own, and a particle as many environments as its weight deserves: episodes of
    particles that do not count would say nothing about the weighted mean. Each environment counts
    its first episodes only: short episodes are not favoured over long ones. `normalize` gives
    normalised returns where the environment knows how. An environment whose episodes need not end
    wants a time limit: `play` waits for all of them. It is left reset.
    """
    combines = (combine,)
    return play_both(
        filter, env, combines=combines, episodes=episodes, normalize=normalize, seed=seed
    )[combine]


@torch.no_grad()
def play_both(
    filter: ParticleFilter,
    env: VectorEnvironment,
    *,
    combines: tuple[str, ...] = COMBINES,
    episodes: int = 1,
    normalize: bool = True,
    seed: int = 0,
) -> dict[str, Score]:
    """`play` for every one of `combines` at once, each in an equal part of the environments."""
    require_environment(env)
    for combine in combines:
        if combine not in COMBINES:
            raise ValueError(f"combine must be 'accuracy' or 'probs', got {combine!r}")
    if env.n_envs % len(combines):
        raise ValueError(f"{env.n_envs} environments cannot be halved for {' and '.join(combines)}")
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    weights, share = filter.weights, env.n_envs // len(combines)
    players = torch.cat([_players(weights, share, combine) for combine in combines])
    returns = _play(filter, env, players, episodes, seed)
    returns = env.normalize(returns) if normalize else returns
    parts = zip(combines, np.split(returns, len(combines)), players.split(share), strict=True)
    return {
        combine: _own_returns(weights.cpu().numpy(), part, who.cpu().numpy())
        if combine == "accuracy"
        else Score(float(part.mean()), part, None)
        for combine, part, who in parts
    }


def _players(weights: Tensor, count: int, combine: str) -> Tensor:
    """Who plays in each of `count` environments `[count]`: particle i, or N for the mixture."""
    if combine == "probs":
        return torch.full((count,), len(weights), device=weights.device)
    # quantiles of the weights: a particle with a share of 1 / count or more is among them
    places = (torch.arange(count, device=weights.device) + 0.5) / count
    return torch.searchsorted(weights.cumsum(0), places.double(), right=True)


def _own_returns(weights: Array, returns: Array, players: Array) -> Score:
    """sum_i w_i R(pi_i) over those who have played."""
    each = [returns[players == number] for number in range(len(weights))]
    own = np.array([part.mean() if part.size else np.nan for part in each])
    played = ~np.isnan(own)
    mean = weights[played] @ own[played] / weights[played].sum()
    return Score(float(mean), returns, own)


def _play(
    filter: ParticleFilter, env: VectorEnvironment, players: Tensor, episodes: int, seed: int
) -> Array:
    """Raw returns `[E, K]`."""
    device = filter.particles.device
    decide: Callable[[Tensor, Tensor], Tensor] = _Decisions(filter, players)
    noise = Gumbels(seed, env.n_envs, env.actions, ACTION, device)
    finished = np.zeros(env.n_envs, dtype=np.int64)
    returns = np.zeros((env.n_envs, episodes))
    staging, everyone = Staging(env.n_envs, device), slice(0, env.n_envs)
    env.reset()
    while (finished < episodes).any():
        frames, draw = staging.frames(env.observations, everyone), noise()
        if noise.draw == 1:
            frames = frames.to(device)
        elif noise.draw == 2 and device.type == "cuda":  # it has run once
            decide = Recorded(decide, frames, draw)
        info = env.step(staging.fetch(decide(frames, draw), everyone)())[-1]
        counted = np.flatnonzero(env.ended & (finished < episodes))
        returns[counted, finished[counted]] = info["episode_return"][counted]
        finished[counted] += 1
    env.reset()  # whoever plays here next begins with whole episodes
    return returns


class _Decisions:
    """What E environments are told to do by their players, by the weights as they are now."""

    def __init__(self, filter: ParticleFilter, players: Tensor) -> None:
        self.particles, self.players = filter.particles, players
        self.log_weights = filter.log_weights
        self._indices = torch.arange(len(players), device=players.device)

    def __call__(self, frames: Tensor, noise: Tensor) -> Tensor:
        with self.particles.evaluating():
            policies = policy_logits(self.particles(frames)).log_softmax(-1)  # [N, E, A]
        require_actions(policies, noise.shape[-1])
        mixture = mixture_log_probabilities(policies, self.log_weights)
        policy = torch.cat([policies, mixture.unsqueeze(0)])[self.players, self._indices]
        return (policy + noise).argmax(-1)
