"""What every filter has: weights to read, predictions, and a state to save."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..particles import Ensemble
from ..particles.parameter import per_particle_view
from ..particles.stacking import check_same_shapes
from .weights import effective_sample_size, temper, temperature_for

Link = str | Callable[[Tensor], Tensor]
_LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda outputs: outputs.softmax(-1),
    "identity": lambda outputs: outputs,
}


class Predictor(ABC):
    """How a weighted set of networks p(x) = sum_i w_i delta(x - x_i) is read and saved.

    Where the weights come from is for others to say. They are float64 logarithms, so that neither
    losses of 1e4 per step nor 1e5 steps can lose one. `min_ess` tempers them when they are *read*
    (`log_weights`, `ess`, `predict`); the raw ones and the evidence never change by it.
    """

    raw_log_weights: Tensor  # [N], normalised, untempered, float64
    alive: Tensor  # [N], bool
    plain_state: tuple[str, ...] = ("seed",)  # what a state holds besides `tensors` and networks

    def __init__(
        self, particles: Ensemble, *, link: Link = "softmax", min_ess: float | None = None
    ) -> None:
        if not isinstance(particles, Ensemble):
            raise TypeError(f"particles must be an ol.Ensemble, got {type(particles).__name__}")
        if not callable(link) and link not in _LINKS:
            raise ValueError(f"link must be 'softmax', 'identity' or a function, got {link!r}")
        if min_ess is not None and not 1 <= min_ess <= particles.n:
            raise ValueError(f"min_ess must lie between 1 and n={particles.n}, got {min_ess}")
        self.particles, self.link, self.min_ess = particles, link, min_ess

    # ------------------------------------------------------------------ weights

    @property
    def temperature(self) -> Tensor:
        """tau, the power to which weights are raised on read; 1 without `min_ess`."""
        if self.min_ess is None:
            return torch.ones((), dtype=torch.float64, device=self.particles.device)
        return temperature_for(self.raw_log_weights, self.min_ess)

    @property
    def log_weights(self) -> Tensor:
        """Normalised log-weights `[N]`, float64, tempered if `min_ess` asks for it."""
        if self.min_ess is None:
            return self.raw_log_weights.clone()
        return temper(self.raw_log_weights, self.temperature)

    @property
    def weights(self) -> Tensor:
        return self.log_weights.exp()

    @property
    @abstractmethod
    def log_evidence(self) -> Tensor:
        """log p(data so far), a float64 scalar; never tempered."""

    @property
    def ess(self) -> Tensor:
        """Effective sample size of the weights as read, between 1 and N."""
        return effective_sample_size(self.log_weights)

    # ------------------------------------------------------------------ prediction

    @property
    def networks(self) -> Ensemble:
        """The networks that answer: the particles, unless a filter makes others of them."""
        return self.particles

    @torch.no_grad()
    def outputs(self, *args: Any, **kwargs: Any) -> Any:
        """Every network's outputs in evaluation mode: `[N, B, ...]`; those here, if sharded."""
        networks = self.networks
        with networks.evaluating():
            return networks(*args, **kwargs)

    @torch.no_grad()
    def predict(self, *args: Any, combine: str = "probs", **kwargs: Any) -> Any:
        """The mixture's prediction, e.g. `[B, C]`.

        `combine="probs"`: sum_i w_i link(output_i), the Bayesian mixture. `combine="logits"`:
        link(sum_i w_i output_i), as the paper's code does.
        """
        if combine not in ("probs", "logits"):
            raise ValueError(f"combine must be 'probs' or 'logits', got {combine!r}")
        link = self.link if callable(self.link) else _LINKS[self.link]
        weights = self.weights

        def mixture(outputs: Tensor) -> Tensor:
            outputs = outputs.float() if outputs.dtype != torch.float64 else outputs
            return self.mixture(link(outputs) if combine == "probs" else outputs, weights)

        averaged = tree_map(mixture, self.outputs(*args, **kwargs))
        return averaged if combine == "probs" else tree_map(link, averaged)

    def mixture(self, values: Tensor, weights: Tensor) -> Tensor:
        """sum_i w_i values_i over all ranks' particles: weights `[N]`, values `[N, ...]` or, of a
        sharded ensemble, those of the particles here. Only the ranks' sums are sent."""
        shard = self.particles.shard
        return shard.sum(self.average(values, shard.local(weights)))

    @staticmethod
    def average(values: Tensor, weights: Tensor) -> Tensor:
        """sum_i w_i values_i over `[N, ...]`; a particle of weight 0 may hold NaN."""
        shares = per_particle_view(weights.to(values.dtype), values)
        return torch.where(shares > 0, shares * values, 0.0).sum(0)

    def tensors(self) -> dict[str, Tensor]:
        """What is saved besides the networks, the same on every rank; changed in place alone."""
        return {}

    def particle_tensors(self) -> dict[str, Tensor]:
        """What there is of each particle besides its network: `[N, ...]`, those here if sharded."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened; see `ol.save`.

        Of a sharded ensemble: all ranks ask, and the first gets the whole, as if there were no
        other. Any number of ranks can load it.
        """
        collect_all = self.particles.shard.collect_all
        return {
            "kind": type(self).__name__,
            "seed": self.particles.seed,
            "particles": collect_all(self.particles.state_dict()),
            **{name: tensor.clone() for name, tensor in self.tensors().items()},
            **collect_all({name: t.clone() for name, t in self.particle_tensors().items()}),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; one of another filter, model or size is refused before any change."""
        self._check_state(state)
        self.particles.load_state_dict(self.particles.shard.local_all(state["particles"]))
        self.particles.seed = state["seed"]  # the noise to come is keyed on it
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])
        for name, tensor in self.particle_tensors().items():
            tensor.copy_(self.particles.shard.local(state[name]))

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state before anything of it is taken over."""
        name, kind = type(self).__name__, state.get("kind")
        if kind not in (None, name):
            raise ValueError(f"this state is of a {kind}, not of a {name}")
        shared, own = self.tensors(), self.particle_tensors()
        missing = {"kind", "particles", *self.plain_state, *shared, *own} - state.keys()
        if missing:
            raise ValueError(f"this is not the state of a {name}: it has no {min(missing)!r}")
        if not isinstance(state.get("seed", 0), int):
            raise ValueError(f"the seed of a state is a whole number, got {state['seed']!r}")
        n = self.particles.n

        def of_all(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
            return {key: (n, *tensor.shape[1:]) for key, tensor in tensors.items()}

        networks = of_all(self.particles.state_dict())
        check_same_shapes(networks, state["particles"], "this state is of another model")
        shapes = {**{key: tuple(t.shape) for key, t in shared.items()}, **of_all(own)}
        given = {key: state[key] for key in shapes}
        check_same_shapes(shapes, given, f"this is no state of this {name}")


class ParticleFilter(Predictor):
    """A weighted set of networks with its weights, evidence, and who is alive.

    By itself it does not learn; subclasses do.
    """

    def __init__(
        self, particles: Ensemble, *, link: Link = "softmax", min_ess: float | None = None
    ) -> None:
        super().__init__(particles, link=link, min_ess=min_ess)
        device, n = particles.device, particles.n
        uniform = torch.full((n,), 1.0 / n, dtype=torch.float64, device=device)
        self.raw_log_weights = uniform.log()
        self._log_evidence = torch.zeros((), dtype=torch.float64, device=device)
        self.alive = torch.ones(n, dtype=torch.bool, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.loads = 0  # how often another state was taken over

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.particles.n} particles, {int(self.steps)} steps, "
            f"ESS {float(self.ess):.1f}, device={str(self.particles.device)!r})"
        )

    @property
    def log_evidence(self) -> Tensor:
        """log p(data so far), a float64 scalar; never tempered."""
        return self._log_evidence.clone()

    def tensors(self) -> dict[str, Tensor]:
        return {
            "log_weights": self.raw_log_weights,
            "log_evidence": self._log_evidence,
            "alive": self.alive,
            "steps": self.steps,
            "draws": self.particles.noise_counter,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.loads += 1

    def _check_state(self, state: Mapping[str, Any]) -> None:
        super()._check_state(state)
        if state["log_weights"].isnan().any():
            raise ValueError("the log-weights of this state are not numbers: it is of no use")
