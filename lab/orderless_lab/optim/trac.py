r"""TRAC: a tuner around any optimizer that scales the distance from the starting point.

Muppidi, Zhang, Yang: "Fast TRAC: a parameter-free optimizer for lifelong reinforcement learning",
2024 (arXiv:2405.16642). With g the gradient at theta_t, u = theta_base - theta_t the base
optimizer's step, and ref the parameters at the first step,

    delta = (theta_t - ref) / (sum_j s_j + eps),   h = <delta, g>
    v_j <- beta_j^2 v_j + h^2,   sigma_j <- beta_j sigma_j - h
    s_j = s_prev / erfi(1 / sqrt 2) * erfi(sigma_j / (sqrt 2 sqrt(v_j) + eps))
    theta_{t+1} = ref + (delta + u) max(sum_j s_j, 0)

The inner product runs over all parameters of *one network*. Over an ensemble every particle has
its own h, v, sigma and s.

Differences from the reference implementation: s, v and sigma are float64 for parameters of any
type; erfi is exact, where the reference's is up to 1 % low, and saturates where that overflows; a
network whose h is not finite does not move, where the reference raises.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from orderless.ensemble.parameter import ParticleParameter, per_particle_view
from orderless.ensemble.stacking import check_same_shapes

from .erfi import Erfi

_KEY: Any = "trac"  # torch's type of `state` allows parameters as keys only, unlike torch itself
BETAS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)


class TRAC(torch.optim.Optimizer):
    """A wrapper around an optimizer: `TRAC(torch.optim.Adam(particles.parameters(), lr=1e-3))`.

    `param_groups` and `state` are the base optimizer's own, so schedulers and filters work on
    either. Parameters of an `ol.Ensemble` are tuned per particle; all ordinary parameters together
    count as one more network. A step does not synchronise with the host, so a CUDA graph can
    contain it.

    Memory beyond the base optimizer: one copy of the parameters (ref), and one more during a step.

    Args:
        base_optimizer: any optimizer whose `step()` needs no closure. TRAC's reference experiments
            use Adam with eps=1e-8 but plain Adam with 1e-5; use equal values in a comparison.
        betas, s_prev, eps: as in the equations; eps is also sigma_0.
    """

    def __init__(
        self,
        base_optimizer: torch.optim.Optimizer,
        *,
        betas: Sequence[float] = BETAS,
        s_prev: float = 1e-8,
        eps: float = 1e-8,
    ) -> None:
        if not isinstance(base_optimizer, torch.optim.Optimizer):
            kind = type(base_optimizer).__name__
            raise TypeError(f"base_optimizer must be a torch.optim.Optimizer, got {kind}")
        if not betas or not all(0.0 < beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be numbers between 0 and 1, got {tuple(betas)}")
        if not (s_prev > 0.0 and eps > 0.0):
            raise ValueError(f"s_prev and eps must be positive, got {s_prev} and {eps}")
        self.base = base_optimizer
        self.eps = eps
        # Not Optimizer.__init__, which would make a second list of the shared groups.
        super().__setstate__(self._shared())
        device = self._parameters()[0].device
        self.erfi: Callable[[Tensor], Tensor] = Erfi(device)
        half = torch.tensor(0.5, dtype=torch.float64, device=device)
        self.unit = s_prev / float(self.erfi(half.sqrt()))
        self.betas = torch.tensor(tuple(betas), dtype=torch.float64, device=device)
        shape = self._networks(), len(self.betas)
        self.s = torch.zeros(shape, dtype=torch.float64, device=device)
        self.variance = torch.zeros_like(self.s)
        self.sigma = torch.full_like(self.s, eps)
        # In the base's state, so that restoring the optimizer's state restores this too.
        self.state[_KEY] = {"s": self.s, "variance": self.variance, "sigma": self.sigma}
        self.references: list[Tensor] = []  # of the parameters in their order

    @property
    def scale(self) -> Tensor:
        """The scale of each network's distance from ref: max(sum_j s_j, 0), `[N]`."""
        return self.s.sum(1).clamp(min=0.0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters = self._parameters()
        for parameter in parameters[len(self.references) :]:
            self.references.append(parameter.detach().clone())
        pairs = zip(parameters, self.references, strict=True)
        moving = [(p, reference) for p, reference in pairs if p.grad is not None]
        divisor = self.s.sum(1) + self.eps
        h = self._along_gradient(moving) / divisor
        before = [p.detach().clone() for p, _ in moving]
        self.base.step()
        finite = h.isfinite()
        self._tune(h, finite)
        for (parameter, reference), old in zip(moving, before, strict=True):
            delta = (old - reference) / self._for(divisor, parameter)
            scale = self._for(self.scale, parameter)
            moved = reference + (delta + parameter - old) * scale
            parameter.copy_(torch.where(self._for(finite, parameter), moved, old))
        return loss

    def _along_gradient(self, moving: list[tuple[Tensor, Tensor]]) -> Tensor:
        """<theta_t - ref, g> of every network: `[N]`, float64."""
        total = torch.zeros(len(self.s), dtype=torch.float64, device=self.s.device)
        for parameter, reference in moving:
            gradient = parameter.grad
            assert gradient is not None
            products = (parameter - reference) * gradient
            if isinstance(parameter, ParticleParameter):
                sums = products.reshape(len(products), -1).sum(1, dtype=torch.float64)
                total[: len(sums)] += sums
            else:
                total[-1] += products.sum(dtype=torch.float64)
        return total

    def _tune(self, h: Tensor, finite: Tensor) -> None:
        h = h.unsqueeze(1)
        finite = finite.unsqueeze(1)
        variance = self.betas.square() * self.variance + h.square()
        sigma = self.betas * self.sigma - h
        s = self.unit * self.erfi(sigma / (math.sqrt(2.0) * variance.sqrt() + self.eps))
        for state, new in ((self.variance, variance), (self.sigma, sigma), (self.s, s)):
            state.copy_(torch.where(finite, new, state))

    def _for(self, values: Tensor, parameter: Tensor) -> Tensor:
        """The networks' values `[N]` in a shape and type that broadcast to a parameter."""
        if values.is_floating_point():
            largest = torch.finfo(parameter.dtype).max
            values = values.clamp(-largest, largest).to(parameter.dtype)
        if isinstance(parameter, ParticleParameter):
            return per_particle_view(values[: parameter.n_particles], parameter)
        return values[-1]

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _networks(self) -> int:
        """The number of networks in the groups: the particles, and one for other parameters."""
        parameters = self._parameters()
        sizes = {p.n_particles for p in parameters if isinstance(p, ParticleParameter)}
        if len(sizes) > 1:
            raise ValueError(
                f"TRAC tunes one ensemble, got parameters of {sorted(sizes)} particles: "
                "give each ensemble an optimizer of its own"
            )
        ordinary = any(not isinstance(p, ParticleParameter) for p in parameters)
        return sum(sizes) + ordinary

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.base.add_param_group(param_group)
        if self._networks() != len(self.s):
            self.param_groups.pop()
            raise ValueError(
                "the new group's parameters belong to another network than those before: "
                "give it an optimizer of its own"
            )

    def _shared(self) -> dict[str, Any]:
        base = self.base
        return {"defaults": base.defaults, "state": base.state, "param_groups": base.param_groups}

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """The base optimizer's state, with TRAC's own under `["state"]["trac"]`."""
        state = self.base.state_dict()
        own: dict[str, Any] = {name: tensor.clone() for name, tensor in self.state[_KEY].items()}
        own["references"] = [reference.clone() for reference in self.references]
        return {**state, "state": {**state["state"], _KEY: own}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
        others = dict(state_dict["state"])
        own = others.pop(_KEY, None)
        if own is None:
            raise ValueError("this state has no 'trac' in it: it is not a state of TRAC")
        ours = self.state[_KEY]
        parameters = self._parameters()
        shapes = {name: tensor.shape for name, tensor in ours.items()}
        given = {name: own.get(name) for name in shapes}
        references = own.get("references", ())
        known = parameters[: len(references)]  # there are none before the first step
        shapes |= {f"reference {k}": parameter.shape for k, parameter in enumerate(known)}
        given |= {f"reference {k}": reference for k, reference in enumerate(references)}
        check_same_shapes(shapes, given, "this state is of another TRAC")
        self.base.load_state_dict({**state_dict, "state": others})
        self.__dict__.update(self._shared())
        self.state[_KEY] = ours
        for name, tensor in ours.items():  # in place: a recorded graph may read these tensors
            tensor.copy_(own[name])
        if len(self.references) != len(references):
            self.references = [torch.empty_like(parameter) for parameter in known]
        for reference, saved in zip(self.references, references, strict=True):
            reference.copy_(saved)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__.copy()
