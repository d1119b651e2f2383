r"""The policy that acts: the weighted mixture of the particles' policies.

    mu(a | s) = sum_j w_j pi_j(a | s)
    log mu = logsumexp_j (log w_j + log pi_j)

`act="mixture"` draws every action from mu. `act="episode"` draws one particle j ~ w at the start of
an episode and plays the whole episode with pi_j, which explores more consistently. Both use
log mu(a | s) as the behaviour. For episodes that is the balance heuristic: it treats each step as
if the particle had been drawn again, and bounds the importance weights pi_i / mu by 1 / w_i.

A dead particle has weight 0: it is no part of mu, and its episodes are given to others.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from orderless.cuda.compiled import no_garbage
from orderless.filters import ParticleFilter as Filter

from .environment import Array, Saved
from .keyed import ACTION, PARTICLE, Gumbels
from .networks import policy_and_values, policy_logits, require_actions


def mixture_log_probabilities(log_policies: Tensor, log_weights: Tensor) -> Tensor:
    """log sum_j w_j pi_j: `log_policies` `[N, ...]`, `log_weights` `[N]` -> `[...]`.

    A particle of weight 0 may hold NaN. With one particle the result is its policy, bit for bit.
    """
    shares = log_weights.to(log_policies.dtype).view(-1, *[1] * (log_policies.dim() - 1))
    terms = torch.where(shares.isneginf(), -torch.inf, shares + log_policies)
    return torch.logsumexp(terms, 0)


class Decision(NamedTuple):
    """Actions for E copies of an environment, with the particles' probabilities and values.

    `actions` `[E]`; `log_policies` `[N, E]`: log pi_i of the action; `log_behaviour` `[E]`:
    log mu of the action; `values` `[N, E]`, None if the networks have none; `observations`
    `[E, ...]`, on the device.
    """

    actions: Tensor
    log_policies: Tensor
    log_behaviour: Tensor
    values: Tensor | None
    observations: Tensor


class MixturePolicy:
    """Draws actions for E environments from a filter's particles.

    The weights are those at the last `begin()`, even if the filter is updated in the meantime.
    Choices are keyed on (seed, draw, environment): they depend neither on the device nor on the
    number of environments. On CUDA a decision is recorded once and then replayed as a graph.

    `playing` `[E]` says who plays in each environment: a particle, or N for the mixture. With
    `act="mixture"` it is given, or the mixture everywhere; by episode it is drawn.
    """

    def __init__(
        self,
        filter: Filter,
        n_envs: int,
        actions: int,
        *,
        act: str = "mixture",
        seed: int = 0,
        playing: Tensor | None = None,
    ) -> None:
        if act not in ("mixture", "episode"):
            raise ValueError(f"act must be 'mixture' or 'episode', got {act!r}")
        self.filter = filter
        self.particles = filter.particles
        self.actions = actions
        self.by_episode = act == "episode"
        self.seed = seed
        self.log_weights = filter.log_weights
        self.draws = 0
        n = filter.particles.n
        device = filter.particles.device
        if playing is None:
            playing = torch.full((n_envs,), 0 if self.by_episode else n, device=device)
        self.playing = playing
        self._environments = torch.arange(n_envs, device=device)
        self._action_noise = Gumbels(seed, n_envs, actions, ACTION, device)
        self._particle_noise = Gumbels(seed, n_envs, n, PARTICLE, device)
        self._decided = Replayed(self._decide, device)
        self._valued = Replayed(self._values, device)

    def begin(self) -> None:
        """Use the filter's current weights from now on."""
        self.log_weights.copy_(self.filter.log_weights)

    def __call__(self, observations: Array, first: Array) -> Decision:
        """Decide for `observations` `[E, ...]`; `first` `[E]` marks those that start an episode."""
        noise = [self._action_noise(self.draws)]
        if self.by_episode:
            noise += [self._particle_noise(self.draws), torch.from_numpy(first)]
        self.draws += 1
        return self._decided(observations, *noise)

    def values(self, observations: Array) -> Tensor:
        """Every particle's values of `observations`: `[N, E]`."""
        return self._valued(observations)

    def _outputs(self, observations: Tensor) -> Any:
        with self.particles.evaluating():
            return self.particles(observations)

    def _values(self, observations: Tensor) -> Tensor:
        return policy_and_values(self._outputs(observations))[1]

    def _decide(
        self,
        observations: Tensor,
        action_noise: Tensor,
        particle_noise: Tensor | None = None,
        first: Tensor | None = None,
    ) -> Decision:
        outputs = self._outputs(observations)
        values = policy_and_values(outputs)[1] if isinstance(outputs, tuple) else None
        log_policies = policy_logits(outputs).log_softmax(-1)  # [N, E, A]
        require_actions(log_policies, self.actions)
        log_mixture = mixture_log_probabilities(log_policies, self.log_weights)
        if particle_noise is not None and first is not None:
            # j ~ w where an episode starts or its particle has died; the others keep theirs
            drawn = (self.log_weights + particle_noise).argmax(-1)
            again = first | self.log_weights[self.playing].isneginf()
            self.playing.copy_(torch.where(again, drawn, self.playing))
        players = torch.cat([log_policies, log_mixture.unsqueeze(0)])
        acting = players[self.playing, self._environments]
        actions = (acting + action_noise).argmax(-1)
        chosen = actions.expand(len(log_policies), -1).unsqueeze(-1)
        return Decision(
            actions,
            log_policies.gather(-1, chosen).squeeze(-1),
            log_mixture.gather(-1, actions.unsqueeze(-1)).squeeze(-1),
            values,
            observations,
        )

    def state_dict(self) -> dict[str, object]:
        return {"seed": self.seed, "draws": self.draws, "playing": self.playing.clone()}

    def load_state_dict(self, state: Saved) -> None:
        if state["seed"] != self.seed:
            raise ValueError(f"this state is of seed {state['seed']}, not of seed {self.seed}")
        self.draws = int(state["draws"])
        self.playing.copy_(state["playing"])


class Replayed:
    """`function(frames, *tensors)` without gradients, for frames of an environment.

    On CUDA the function runs once as it is, because some initialisation cannot be recorded, and is
    then recorded as a graph. Frames are in pinned memory, which the GPU reads asynchronously.
    """

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        self.function = function
        self.device = device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._result: Any = None

    @torch.no_grad()
    def __call__(self, frames: Array, *tensors: Tensor) -> Any:
        if self.device.type != "cuda":
            return self.function(torch.from_numpy(frames), *tensors)
        if not self._inputs:
            self._pinned = torch.from_numpy(frames).pin_memory()
            self._inputs = [t.to(self.device, copy=True) for t in (self._pinned, *tensors)]
            # copies: a result may contain its inputs, which the next call overwrites
            return tree_map(torch.clone, self.function(*self._inputs))
        # By numpy: torch would use all cores, whose threads then compete with the environments.
        np.copyto(self._pinned.numpy(), frames)
        for static, tensor in zip(self._inputs, (self._pinned, *tensors), strict=True):
            static.copy_(tensor, non_blocking=True)
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with no_garbage(), torch.cuda.graph(self._graph):
                self._result = self.function(*self._inputs)
        self._graph.replay()
        return tree_map(torch.clone, self._result)
