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
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orderless.filters.base import ParticleFilter

from .environment import Saved
from .keyed import ACTION, PARTICLE, Gumbels
from .networks import policy_and_values, policy_logits, require_actions
from .staging import Recorded


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
        filter: ParticleFilter,
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
        self.act = act
        self.seed = seed
        self.log_weights = filter.log_weights
        self.draws = 0
        n = filter.particles.n
        device = filter.particles.device
        mixture = torch.full((n_envs,), n, device=device)
        self.playing = mixture if playing is None else playing
        if act == "episode":
            self.playing = torch.zeros_like(mixture)
        self._environments = torch.arange(n_envs, device=device)
        noise = partial(Gumbels, seed, n_envs, device=device)
        self._noise = [noise(actions, ACTION)]
        if act == "episode":
            self._noise.append(noise(n, PARTICLE))
        self._graphs: dict[str, Recorded | None] = {}  # None: the function has run once

    def begin(self) -> None:
        """Use the filter's current weights from now on."""
        self.log_weights.copy_(self.filter.log_weights)

    @torch.no_grad()
    def __call__(self, observations: Tensor, first: Tensor) -> Decision:
        """Decide for `observations` `[E, ...]`; `first` `[E]` marks those that start an episode.

        On CUDA the next call overwrites the returned tensors, and `observations` in pinned memory
        are copied from there.
        """
        for source in self._noise:
            source.draw = self.draws
        self.draws += 1
        inputs = [observations, *(source() for source in self._noise)]
        if self.act == "episode":
            inputs.append(first)
        return self._run("decide", self._decide, inputs)

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        """Every particle's values of `observations`: `[N, E]`."""
        return self._run("values", self._values, [observations])

    def _run(self, name: str, function: Callable[..., Any], inputs: list[Tensor]) -> Any:
        """`function(*inputs)`; on CUDA eagerly at first, then recorded and replayed."""
        device = self.particles.device
        if device.type != "cuda" or name not in self._graphs:
            self._graphs[name] = None
            return function(*(tensor.to(device) for tensor in inputs))
        graph = self._graphs[name] or Recorded(function, *inputs)
        self._graphs[name] = graph
        return graph(*inputs)

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
            dead = self.log_weights[self.playing].isneginf()
            self.playing.copy_(torch.where(first | dead, drawn, self.playing))
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
        draws = torch.tensor(self.draws)
        return {"seed": self.seed, "draws": draws, "playing": self.playing.clone()}

    def load_state_dict(self, state: Saved) -> None:
        if state["playing"].shape != self.playing.shape:
            raise ValueError(
                f"this state is of {len(state['playing'])} environments, not of {len(self.playing)}"
            )
        if state["seed"] != self.seed:
            raise ValueError(f"this state is of seed {state['seed']}, not of seed {self.seed}")
        self.draws = int(state["draws"])
        self.playing.copy_(state["playing"])
