"""The parts that all filters share: weights, predictions and saved states."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..ensemble import Ensemble
from ..ensemble.parameter import per_particle_view
from ..ensemble.stacking import check_same_shapes
from .weights import effective_sample_size, temper, temperature_for

Link = str | Callable[[Tensor], Tensor]
_LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda outputs: outputs.softmax(-1),
    "identity": lambda outputs: outputs,
}


def copied(state: Any) -> Any:
    """A copy of a nested state with its own tensors; torch's states share those of their object."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, state)


class Predictor(ABC):
    """A weighted set of networks p(x) = sum_i w_i delta(x - x_i): predictions and saved states.

    Subclasses compute the weights. They are float64 logarithms, so that neither losses of 1e4 per
    step nor 1e5 steps underflow. `min_ess` tempers them when they are *read* (`log_weights`, `ess`,
    `predict`); it never changes the raw weights or the evidence.
    """

    raw_log_weights: Tensor  # [N], normalised, untempered, float64
    alive: Tensor  # [N], bool
    plain_state: tuple[str, ...] = ("seed",)  # entries of a state besides `tensors` and networks

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

    @property
    def temperature(self) -> Tensor:
        """tau, the power to which weights are raised on read; 1 without `min_ess`."""
        if self.min_ess is None:
            return torch.ones((), dtype=torch.float64, device=self.particles.device)
        return temperature_for(self.raw_log_weights, self.min_ess)

    @property
    def log_weights(self) -> Tensor:
        """Normalised log-weights `[N]`, float64, tempered if `min_ess` requires it."""
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

    @property
    def networks(self) -> Ensemble:
        """The networks that predict: the particles, or those that a filter computes from them."""
        return self.particles

    @torch.no_grad()
    def outputs(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of every network in evaluation mode: `[N, B, ...]`; of this rank's if sharded."""
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
        """sum_i w_i values_i over the particles of all ranks, from weights `[N]` and values
        `[N, ...]`, or those of this rank's particles. Ranks exchange their sums only."""
        shard = self.particles.shard
        return shard.sum(self.average(values, shard.local(weights)))

    @staticmethod
    def average(values: Tensor, weights: Tensor) -> Tensor:
        """sum_i w_i values_i over `[N, ...]`; values of particles with weight 0 may be NaN."""
        shares = per_particle_view(weights.to(values.dtype), values)
        return torch.where(shares > 0, shares * values, 0.0).sum(0)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of the state besides the networks, equal on all ranks; only changed in place."""
        return {}

    def particle_tensors(self) -> dict[str, Tensor]:
        """Tensors of the state per particle besides its network: `[N, ...]`; this rank's part."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything needed to resume exactly; see `ol.save`.

        For a sharded ensemble all ranks must call this, and the first gets the state of all
        particles. Any number of ranks can load it.
        """
        collect_all = self.particles.shard.collect_all
        return {
            "kind": type(self).__name__,
            "seed": self.particles.seed,
            "particles": collect_all(copied(self.particles.state_dict())),
            **copied(self.tensors()),
            **collect_all(copied(self.particle_tensors())),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Raise before any change if it is of another filter, model or size."""
        self.check_state(state)
        self.particles.load_state_dict(self.particles.shard.local_all(state["particles"]))
        self.particles.seed = state["seed"]  # later noise is keyed on it
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])
        for name, tensor in self.particle_tensors().items():
            tensor.copy_(self.particles.shard.local(state[name]))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise `ValueError` for a state that `load_state_dict` cannot load."""
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
    """A weighted set of networks that stores its weights, its evidence and who is alive.

    It does not learn by itself; subclasses do. `options` are those of `Predictor`.
    """

    def __init__(self, particles: Ensemble, **options: Any) -> None:
        super().__init__(particles, **options)
        device, n = particles.device, particles.n
        uniform = torch.full((n,), 1.0 / n, dtype=torch.float64, device=device)
        self.raw_log_weights = uniform.log()
        self._log_evidence = torch.zeros((), dtype=torch.float64, device=device)
        self.alive = torch.ones(n, dtype=torch.bool, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.loads = 0  # the number of calls of load_state_dict

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.particles.n} particles, {int(self.steps)} steps, "
            f"ESS {float(self.ess):.1f}, device={str(self.particles.device)!r})"
        )

    @property
    def log_evidence(self) -> Tensor:
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

    def check_state(self, state: Mapping[str, Any]) -> None:
        super().check_state(state)
        if state["log_weights"].isnan().any():
            raise ValueError("the log-weights of this state are not numbers: it is of no use")
