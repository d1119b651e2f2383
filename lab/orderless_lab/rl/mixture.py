r"""The policy that acts: the weighted mixture of the particles' policies.

    mu(a | s) = sum_j w_j pi_j(a | s)
    log mu = logsumexp_j (log w_j + log pi_j)

`act="mixture"` draws every action from mu. `act="episode"` draws one particle j ~ w at the start of
an episode and plays the whole episode with pi_j, which explores more consistently. Both use
log mu(a | s) as the behaviour. For episodes that is the balance heuristic: it treats each step as
if the particle had been drawn again, and bounds the importance weights pi_i / mu by 1 / w_i.
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
    if len(log_policies) != len(log_weights):
        raise ValueError(
            f"{len(log_policies)} of {len(log_weights)} particles are in this process, but a "
            "mixture that acts needs all of them: make the ensemble without a group"
        )
    shares = log_weights.to(log_policies.dtype).view(-1, *[1] * (log_policies.dim() - 1))
    terms = torch.where(shares.isneginf(), -torch.inf, shares + log_policies)
    return torch.logsumexp(terms, 0)


class Decision(NamedTuple):
    """Actions for E copies of an environment, with the particles' probabilities and values.

    `actions` `[E]`; `log_policies` `[N, E]`: log pi_i of the action; `log_behaviour` `[E]`:
    log mu of the action; `values` `[N, E]`; `observations` `[E, ...]`, on the device.
    """

    actions: Tensor
    log_policies: Tensor
    log_behaviour: Tensor
    values: Tensor
    observations: Tensor


class MixturePolicy:
    """Draws actions for E environments from a filter's particles.

    The weights are those at the last `begin()`, even if the filter is updated in the meantime.
    Choices are keyed on (seed, draw, environment): they depend neither on the device nor on the
    number of environments. On CUDA a decision is recorded once and then replayed as a graph.
    """

    def __init__(
        self,
        filter: ParticleFilter,
        n_envs: int,
        *,
        actions: int | None = None,
        act: str = "mixture",
        seed: int = 0,
    ) -> None:
        if act not in ("mixture", "episode"):
            raise ValueError(f"act must be 'mixture' or 'episode', got {act!r}")
        self.filter, self.particles, self.act, self.seed = filter, filter.particles, act, seed
        self.actions = actions  # the number that the networks must have; None: any
        device = self.particles.device
        self.log_weights = filter.log_weights
        self.draws = 0
        self.playing = torch.zeros(n_envs, dtype=torch.int64, device=device)
        self._indices = torch.arange(n_envs, device=device)
        self._noise: list[Gumbels] = []  # for actions and, by episode, for particles
        # by function name and rows; None: the function has run once
        self._graphs: dict[tuple[str, int, int], Recorded | None] = {}

    def begin(self) -> None:
        """Use the filter's current weights from now on."""
        self.log_weights.copy_(self.filter.log_weights)

    @torch.no_grad()
    def __call__(
        self,
        observations: Tensor,
        first: Tensor,
        rows: slice | None = None,
        keep: Callable[[slice, Decision], None] | None = None,
    ) -> Decision:
        """Decide for `observations` `[E, ...]`; `first` `[E]` marks those that start an episode.

        With `rows` they are of those environments only; the decision for the last row completes a
        draw. On CUDA the next call for the same environments overwrites the returned tensors, and
        `observations` in pinned memory are copied from there. `keep(rows, decision)` becomes part
        of the recording: it must be the same function every time and not synchronise with the host.
        """
        rows = rows or slice(0, len(self._indices))
        inputs = [observations, *self._draw(observations, rows)]
        if self.act == "episode":
            inputs.append(first)
        return self._run("decide", partial(self._decide, rows, keep), rows, inputs)

    def _run(
        self, name: str, function: Callable[..., Any], rows: slice, inputs: list[Tensor]
    ) -> Any:
        """`function(*inputs)`; on CUDA eagerly at first, then recorded and replayed."""
        device, place = self.particles.device, (name, rows.start, rows.stop)
        if device.type != "cuda" or place not in self._graphs:
            self._graphs[place] = None
            return function(*(tensor.to(device) for tensor in inputs))
        graph = self._graphs[place] or Recorded(function, *inputs)
        self._graphs[place] = graph
        return graph(*inputs)

    def _draw(self, observations: Tensor, rows: slice) -> list[Tensor]:
        """The noise of this draw for actions `[E, A]` and, by episode, for particles `[E, N]`."""
        if not self._noise:
            logits = policy_logits(self._outputs(observations.to(self.particles.device)))
            if self.actions is not None:
                require_actions(logits, self.actions)
            noise = partial(Gumbels, self.seed, len(self._indices), device=self.particles.device)
            self._noise = [noise(logits.shape[-1], ACTION)]
            if self.act == "episode":
                self._noise.append(noise(self.particles.n, PARTICLE))
        for source in self._noise:
            source.draw = self.draws
        self.draws += rows.stop == len(self._indices)
        return [source()[rows] for source in self._noise]

    @torch.no_grad()
    def values(self, observations: Tensor, rows: slice | None = None) -> Tensor:
        """Every particle's values of `observations`: `[N, E]`; `rows` as in a decision."""
        rows = rows or slice(0, len(self._indices))

        def values(observations: Tensor) -> Tensor:
            return policy_and_values(self._outputs(observations))[1]

        return self._run("values", values, rows, [observations])

    def _outputs(self, observations: Tensor) -> Any:
        with self.particles.evaluating():
            return self.particles(observations)

    def _decide(
        self,
        rows: slice,
        keep: Callable[[slice, Decision], None] | None,
        observations: Tensor,
        action_noise: Tensor,
        particle_noise: Tensor | None = None,
        first: Tensor | None = None,
    ) -> Decision:
        logits, values = policy_and_values(self._outputs(observations))
        log_policies = logits.log_softmax(-1)  # [N, E, A]
        log_mixture = mixture_log_probabilities(log_policies, self.log_weights)
        acting = log_mixture
        if particle_noise is not None and first is not None:
            # j ~ w for every environment that starts an episode; the others keep their particle
            drawn, playing = (self.log_weights + particle_noise).argmax(-1), self.playing[rows]
            playing.copy_(torch.where(first, drawn, playing))
            acting = log_policies[playing, self._indices[: len(playing)]]
        actions = (acting + action_noise).argmax(-1)
        chosen = actions.expand(len(log_policies), -1).unsqueeze(-1)
        decision = Decision(
            actions,
            log_policies.gather(-1, chosen).squeeze(-1),
            log_mixture.gather(-1, actions.unsqueeze(-1)).squeeze(-1),
            values,
            observations,
        )
        if keep is not None:
            keep(rows, decision)
        return decision

    def state_dict(self) -> dict[str, object]:
        draws = torch.tensor(self.draws)
        return {"seed": self.seed, "draws": draws, "playing": self.playing.clone()}

    def check_state(self, state: Saved) -> None:
        """Raise, before any change, if `load_state_dict` could not load a state."""
        if state["playing"].shape != self.playing.shape:
            raise ValueError(
                f"this state is of {len(state['playing'])} environments, not of {len(self.playing)}"
            )
        if state["seed"] != self.seed:
            raise ValueError(f"this state is of seed {state['seed']}, not of seed {self.seed}")
        int(state["draws"])

    def load_state_dict(self, state: Saved) -> None:
        self.check_state(state)
        self.draws = int(state["draws"])
        self.playing.copy_(state["playing"])
