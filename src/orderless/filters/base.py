"""The parts that all filters share: weights, predictions, steps and saved states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..cuda import fused
from ..cuda.compiled import CompiledStep
from ..ensemble import Ensemble
from ..ensemble.stacking import check_same_shapes, per_particle_view
from .weights import effective_sample_size, normalize, temper, temperature_for

NOBODY = (
    "no particle is left with a finite loss and gradient: lower the learning rate or look at the "
    "data, and go on from the last saved state"
)
Link = str | Callable[[Tensor], Tensor]
Closure = Callable[..., Any]


def _softmax(outputs: Tensor) -> Tensor:
    if outputs.shape[-1] == 1:
        raise ValueError(
            "softmax over one output is 1 for every sample: give link='sigmoid' (the probability "
            "of a yes) or link='identity' (a number)"
        )
    return outputs.softmax(-1)


def _identity(outputs: Tensor) -> Tensor:
    return outputs


LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": _softmax,
    "sigmoid": torch.sigmoid,
    "identity": _identity,
}


def copied(state: Any) -> Any:
    """A copy of a nested state with its own tensors; torch's states share those of their object."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, state)


class Predictor(ABC):
    """A weighted set of networks p(x) = sum_i w_i delta(x - x_i): predictions and saved states.

    Subclasses compute the weights. They are float64 logarithms, so that neither losses of 1e4 per
    step nor 1e5 steps underflow. `min_ess` tempers them when they are *read* (`log_weights`, `ess`,
    `predict`); it never changes the raw weights or the evidence, and may be set at any time.
    A dead particle has weight 0 and takes no part in any prediction, whatever its numbers.

    `link` turns outputs into predictions: `"softmax"` (classes), `"sigmoid"` (one output, the
    probability of a yes), `"identity"` (numbers) or a function.
    """

    raw_log_weights: Tensor  # [N], normalised, untempered, float64
    alive: Tensor  # [N], bool
    plain_state: tuple[str, ...] = ("seed",)  # entries of a state besides `tensors` and networks

    def __init__(
        self, particles: Ensemble, *, link: Link = "softmax", min_ess: float | None = None
    ) -> None:
        if not isinstance(particles, Ensemble):
            raise TypeError(f"particles must be an ol.Ensemble, got {type(particles).__name__}")
        if not callable(link) and link not in LINKS:
            raise ValueError(f"link must be one of {', '.join(LINKS)} or a function, got {link!r}")
        if min_ess is not None and not 1 <= min_ess <= particles.n:
            raise ValueError(f"min_ess must lie between 1 and n={particles.n}, got {min_ess}")
        self.particles = particles
        self.link = link
        self.min_ess = min_ess

    @property
    def temperature(self) -> Tensor:
        """tau, the power to which weights are raised when they are read; 1 without `min_ess`."""
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
        """Weights `[N]` that sum to 1, float64."""
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
        """Outputs of every network in evaluation mode: `[N, B, ...]`."""
        networks = self.networks
        with networks.evaluating():
            return networks(*args, **kwargs)

    @torch.no_grad()
    def predict(self, *args: Any, combine: str = "probs", **kwargs: Any) -> Any:
        """The mixture's prediction, e.g. `[B, C]`: by default the softmax of the outputs, as for
        classes. A filter does not see targets: for numbers, make it with `link="identity"`.

        `combine="probs"`: sum_i w_i link(output_i), the Bayesian mixture. `combine="logits"`:
        link(sum_i w_i output_i), as the paper's code does.
        """
        if combine not in ("probs", "logits"):
            raise ValueError(f"combine must be 'probs' or 'logits', got {combine!r}")
        link = self.link if callable(self.link) else LINKS[self.link]
        weights = self.weights

        def mixture(outputs: Tensor) -> Tensor:
            outputs = outputs.float() if outputs.dtype != torch.float64 else outputs
            return self.average(link(outputs) if combine == "probs" else outputs, weights)

        averaged = tree_map(mixture, self.outputs(*args, **kwargs))
        return averaged if combine == "probs" else tree_map(link, averaged)

    @staticmethod
    def average(values: Tensor, weights: Tensor) -> Tensor:
        """sum_i w_i values_i over `[N, ...]`; values of particles with weight 0 may be NaN."""
        shares = per_particle_view(weights.to(values.dtype), values)
        return torch.where(shares > 0, shares * values, 0.0).sum(0)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of the state besides the networks; only changed in place."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything needed to resume exactly; see `ol.save`."""
        return {
            "kind": type(self).__name__,
            "seed": self.particles.seed,
            "particles": copied(self.particles.state_dict()),
            **copied(self.tensors()),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Raise before any change if it is of another filter, model or size."""
        self.check_state(state)
        self.particles.load_state_dict(state["particles"])
        self.particles.seed = state["seed"]  # later noise is keyed on it
        for name, tensor in self.tensors().items():
            tensor.copy_(state[name])

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise `ValueError` for a state that `load_state_dict` cannot load."""
        name = type(self).__name__
        tensors = self.tensors()
        if state.get("kind", name) != name:
            raise ValueError(f"this state is of a {state['kind']}, not of a {name}")
        missing = {"kind", "particles", *self.plain_state, *tensors} - state.keys()
        if missing:
            raise ValueError(f"this is not the state of a {name}: it has no {min(missing)!r}")
        if not isinstance(state.get("seed", 0), int):
            raise ValueError(f"the seed of a state is a whole number, got {state['seed']!r}")
        networks = {key: tuple(t.shape) for key, t in self.particles.state_dict().items()}
        check_same_shapes(networks, state["particles"], "this state is of another model")
        shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
        given = {key: state[key] for key in shapes}
        check_same_shapes(shapes, given, f"this is no state of this {name}")

    def to(self, *args: Any, **options: Any) -> Any:
        """Move networks, weights and everything else to a device, in place, as modules do."""
        self.particles.to(*args, **options)
        device = self.particles.device
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self


@dataclass(frozen=True)
class StepInfo:
    """The report of one step; tensors stay on the device.

    `loss_before` `[N]` at the old positions, `loss_after` `[N]` at the new ones (None if the filter
    does not evaluate them), `penalty` `[N]` or None, `alive` `[N]`, and the raw `log_weights` `[N]`
    after the step with their `ess`.
    """

    loss_before: Tensor
    loss_after: Tensor | None
    penalty: Tensor | None
    alive: Tensor
    log_weights: Tensor

    @property
    def ess(self) -> Tensor:
        return effective_sample_size(self.log_weights)

    def copied(self) -> StepInfo:
        """A copy with its own tensors: a filter changes its weights in place."""
        values = [getattr(self, field.name) for field in fields(self)]
        clones: Any = [None if value is None else value.clone() for value in values]
        return StepInfo(*clones)


class ParticleFilter(Predictor):
    """A weighted set of networks that learns from closures. Subclasses define `advance`.

    A closure computes N losses (`[N]`, float32 or float64) and nothing else: it does not call
    backward, draw data or augment. It may return `(losses, outputs)`; a penalty is then called with
    `outputs=` and need not compute them again.

    An error inside a closure's first evaluation changes nothing. Later in a step the filter is in
    the state of any interrupted training: load the last saved state.
    """

    def __init__(self, particles: Ensemble, *, check_every: int = 100, **options: Any) -> None:
        super().__init__(particles, **options)
        device = particles.device
        n = particles.n
        uniform = torch.full((n,), 1.0 / n, dtype=torch.float64, device=device)
        self.raw_log_weights = uniform.log()
        self._log_evidence = torch.zeros((), dtype=torch.float64, device=device)
        self.alive = torch.ones(n, dtype=torch.bool, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.loads = 0  # the number of calls of load_state_dict
        self.check_every = check_every
        self._unchecked = 0
        self._failed = torch.zeros((), dtype=torch.bool, device=device)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.particles.n} particles, {int(self.steps)} steps, "
            f"ESS {float(self.ess):.1f}, device={str(self.particles.device)!r})"
        )

    @property
    def log_evidence(self) -> Tensor:
        return self._log_evidence.clone()

    def step(
        self, closure: Closure | Sequence[Closure], *, penalty: Closure | None = None
    ) -> StepInfo:
        """Take one step on the loss of `closure`, or on the sum of the losses of several."""
        closures = list(closure) if isinstance(closure, Sequence) else [closure]
        if not closures:
            raise ValueError("step needs at least one closure, got an empty list")
        for function in (*closures, *([] if penalty is None else [penalty])):
            if not callable(function):
                raise TypeError(
                    "step takes functions that compute losses, as in pf.step(lambda: "
                    f"loss(particles(x), y)), got {type(function).__name__}"
                )
        if torch.is_inference_mode_enabled():
            raise RuntimeError("a filter cannot learn inside torch.inference_mode(): leave it")
        info = self.advance(closures, penalty)
        self.check()
        # a later step changes these in place
        return replace(info, alive=info.alive.clone(), log_weights=info.log_weights.clone())

    @abstractmethod
    def advance(self, closures: Sequence[Closure], penalty: Closure | None = None) -> StepInfo:
        """One step. It makes no decision on the host, so that a CUDA graph can record it."""

    def recorded_settings(self) -> tuple[Any, ...]:
        """The values besides tensors that a recorded step depends on."""
        return ()

    def compile(
        self, loss_fn: Callable[..., Any], penalty: Callable[..., Tensor] | None = None
    ) -> Callable[..., StepInfo]:
        """`fast = pf.compile(loss_fn)`, then `info = fast(x, y)`: one CUDA graph per shape.

        `loss_fn(*batch) -> [N]` and `penalty(*batch) -> [N]` replace the closures. On the CPU this
        is `step`. Random numbers in `loss_fn` must come from the ensemble (dropout): torch's own
        generator would give the two evaluations of a graph different numbers.
        """
        if self.particles.device.type == "cuda":
            return CompiledStep(self, loss_fn, penalty)

        def step(*batch: Tensor) -> StepInfo:
            bound = None if penalty is None else partial(penalty, *batch)
            return self.step(partial(loss_fn, *batch), penalty=bound)

        return step

    def evaluate(self, closure: Closure, what: str = "closure", **given: Any) -> tuple[Tensor, Any]:
        """Call a closure: losses `[N]`, and the outputs returned with them or None."""
        result = closure(**given)
        losses, outputs = result if isinstance(result, tuple) else (result, None)
        check_losses(losses, self.particles, what)
        return losses, outputs

    def living(self, losses: Tensor) -> Tensor:
        """Who has a weight and a finite loss `[N]`; on the CPU, raise if nobody does."""
        living = (self.raw_log_weights - losses).isfinite()
        if losses.device.type == "cpu" and not living.any():
            raise FloatingPointError(
                "no particle has a finite loss: look at the data of this step; nothing has changed"
            )
        return living

    def reweigh(self, gain: Tensor, alive: Tensor) -> None:
        """w_i <- w_i e^{gain_i}; particles without a finite gain die: their weight stays 0.

        If none is left, raise before any change; on CUDA, `check` raises later.
        """
        if gain.is_cuda and fused.can_reweigh(self.raw_log_weights):
            state = self.raw_log_weights, self._log_evidence, self.alive, self._failed, self.steps
            fused.reweigh(gain, alive, *state)
            return
        alive = alive & gain.isfinite()
        grown = torch.where(alive, self.raw_log_weights + gain, -torch.inf)
        evidence = torch.logsumexp(grown, 0)
        failed = evidence.isneginf()
        if gain.is_cuda:
            self._failed.logical_or_(failed)
        elif failed:
            raise FloatingPointError(NOBODY)
        torch.sub(grown, evidence, out=self.raw_log_weights)
        self._log_evidence.add_(evidence)
        self.alive.copy_(alive)
        self.steps.add_(1)

    def check(self, now: bool = False) -> None:
        """Raise if no particle is left. On CUDA this is checked only every `check_every` steps."""
        self._unchecked += 1
        waits = self.particles.device.type == "cuda" and self._unchecked < self.check_every
        if waits and not now:
            return
        self._unchecked = 0
        if self._failed.item():
            self._failed.zero_()
            raise FloatingPointError(NOBODY)

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

    def joined_log_weights(self, parts: Sequence[ParticleFilter]) -> tuple[Tensor, Tensor]:
        """Log-weights and evidence of filters over disjoint particles as one; see `merge_filters`.

        A part's weights are normalised by its own evidence e^E and count:

            u_i = w_i e^{E_k} N_k / N,   log w_i = log u_i - log sum u,   E = log sum u
        """
        n = sum(part.particles.n for part in parts)
        shares = [
            part.raw_log_weights + part._log_evidence + math.log(part.particles.n / n)
            for part in parts
        ]
        return normalize(torch.cat(shares))


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def check_losses(losses: Any, particles: Ensemble, what: str) -> None:
    """Raise if a function did not return one loss per particle."""
    n = particles.n
    device = particles.device
    if not isinstance(losses, Tensor):
        raise TypeError(f"the {what} must return a tensor, got {type(losses).__name__}")
    if losses.shape != (n,):
        got = "a scalar" if losses.dim() == 0 else f"shape {tuple(losses.shape)}"
        raise ValueError(
            f"the {what} must return one loss per particle, shape ({n},), got {got}: "
            "ol.per_particle turns a loss for one network into such a function"
        )
    if losses.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"the {what} must return float32 or float64, got {losses.dtype}")
    if losses.device != device:
        raise ValueError(f"the {what} returned losses on {losses.device}, not on {device}")
