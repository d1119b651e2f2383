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
type; erfi is exact, where the reference's is up to 1% low, and saturates where that overflows; a
network whose h is not finite does not move, where the reference raises.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from orderless.ensemble.stacking import ParticleParameter, check_same_shapes

from .erfi import Erfi

_KEY: Any = "trac"  # torch's type of `state` allows parameters as keys only, unlike torch itself
BETAS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)


class TRAC(torch.optim.Optimizer):
    """A wrapper around an optimizer: `TRAC(torch.optim.Adam(particles.parameters(), lr=1e-3))`.

    The parameters are those of one `ol.Ensemble`, which are tuned per particle, or of one ordinary
    network. `param_groups` and `state` are the base optimizer's own, so schedulers and filters work
    on either. A step does not synchronise with the host, so a CUDA graph can contain it.

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
        self.base = base_optimizer
        self.eps = eps
        self._share_with_base()
        parameters = self._parameters()
        sizes = {p.n_particles if isinstance(p, ParticleParameter) else 1 for p in parameters}
        if len(sizes) > 1:
            raise ValueError(
                f"TRAC tunes one ensemble, got parameters of {sorted(sizes)} networks: "
                "give each ensemble an optimizer of its own"
            )
        (self.n,) = sizes
        device = parameters[0].device
        self.erfi: Callable[[Tensor], Tensor] = Erfi(device)
        half = torch.tensor(0.5, dtype=torch.float64, device=device)
        self.unit = s_prev / float(self.erfi(half.sqrt()))
        self.betas = torch.tensor(tuple(betas), dtype=torch.float64, device=device)
        self.s = torch.zeros(self.n, len(self.betas), dtype=torch.float64, device=device)
        self.variance = torch.zeros_like(self.s)
        self.sigma = torch.full_like(self.s, eps)
        # In the base's state, so that restoring the optimizer's state restores this too.
        self.state[_KEY] = {"s": self.s, "variance": self.variance, "sigma": self.sigma}
        self.references: list[Tensor] = []  # of the parameters in their order

    def _share_with_base(self) -> None:
        """Not Optimizer.__init__, which would make a second list of the shared groups."""
        names = "defaults", "state", "param_groups"
        super().__setstate__({name: getattr(self.base, name) for name in names})

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

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
        if not self.references:
            self.references = [parameter.detach().clone() for parameter in parameters]
        moving = [
            (self._rows(parameter), self._rows(reference), parameter.grad.reshape(self.n, -1))
            for parameter, reference in zip(parameters, self.references, strict=True)
            if parameter.grad is not None
        ]
        divisor = self.s.sum(1) + self.eps
        h = torch.zeros_like(divisor)
        for rows, reference, gradient in moving:
            h += ((rows - reference) * gradient).sum(1, dtype=torch.float64)
        h /= divisor
        before = [rows.clone() for rows, _, _ in moving]
        self.base.step()
        finite = h.isfinite()
        self._tune(h, finite)
        for (rows, reference, _), old in zip(moving, before, strict=True):
            delta = (old - reference) / self._column(divisor, rows)
            moved = reference + (delta + rows - old) * self._column(self.scale, rows)
            rows.copy_(torch.where(finite.unsqueeze(1), moved, old))
        return loss

    def _rows(self, tensor: Tensor) -> Tensor:
        """A view of a parameter with a row for each network: `[N, P]`."""
        return tensor.detach().view(self.n, -1)

    def _column(self, values: Tensor, rows: Tensor) -> Tensor:
        """The networks' values `[N]` as `[N, 1]`, in the type of the parameters."""
        largest = torch.finfo(rows.dtype).max
        return values.clamp(-largest, largest).to(rows.dtype).unsqueeze(1)

    def _tune(self, h: Tensor, finite: Tensor) -> None:
        h = h.unsqueeze(1)
        variance = self.betas.square() * self.variance + h.square()
        sigma = self.betas * self.sigma - h
        s = self.unit * self.erfi(sigma / (math.sqrt(2.0) * variance.sqrt() + self.eps))
        for state, new in ((self.variance, variance), (self.sigma, sigma), (self.s, s)):
            state.copy_(torch.where(finite.unsqueeze(1), new, state))

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        """The base optimizer's state, with TRAC's own under `["state"]["trac"]`."""
        state = self.base.state_dict()
        own: dict[str, Any] = {name: tensor.clone() for name, tensor in self.state[_KEY].items()}
        own["references"] = [reference.clone() for reference in self.references]
        return {**state, "state": {**state["state"], _KEY: own}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # type: ignore[override]
        others = dict(state_dict["state"])
        own = dict(others.pop(_KEY, {}))
        references = own.pop("references", [])  # none before the first step
        ours = self.state[_KEY]
        shapes = {name: tensor.shape for name, tensor in ours.items()}
        check_same_shapes(shapes, own, "this is no state of such a TRAC")
        self.base.load_state_dict({**state_dict, "state": others})
        self._share_with_base()
        self.state[_KEY] = ours
        for name, tensor in ours.items():  # in place: a recorded graph may read these tensors
            tensor.copy_(own[name])
        if len(self.references) != len(references):
            self.references = [torch.empty_like(p) for p in self._parameters()[: len(references)]]
        for reference, saved in zip(self.references, references, strict=True):
            reference.copy_(saved)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__.copy()
