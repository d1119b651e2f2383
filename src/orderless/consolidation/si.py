r"""Synaptic intelligence: parameters are kept by how much they contributed to lowering the loss.

Zenke, Poole, Ganguli 2017 (arXiv:1703.04200). During a task, and at its end,

    omega <- omega - g (theta_new - theta_old)                     at every step
    Omega <- Omega + omega / ((theta - theta_start)^2 + xi)        at the end; then omega <- 0
    penalty = c sum Omega (theta - theta*)^2                       theta* the last task's end

For small steps the sum of omega over all parameters is the drop of the loss.

As in van de Ven et al. (2022): g is the *total* gradient (of loss and penalty) that the optimizer
saw, after clipping if there is any; no factor 1/2; omega is not cut off at 0, so Omega can be
negative where a parameter moved against its gradient (momentum, noise). A closed step uses
max(Omega, 0), because only that is a Gaussian, and its g is grad L + 2 c max(Omega, 0) (theta_new -
theta*): without momentum, -g times the learning rate is exactly the step.
"""

from typing import Any

import torch
from torch import Tensor

from ..ensemble import Ensemble
from .base import Data, Named, QuadraticConsolidation


class SI(QuadraticConsolidation):
    """Synaptic intelligence of every particle by itself.

    Needs `pf.register(si)`: the two hooks compute the path integral, in place and without
    synchronising with the host, so they can be part of a CUDA graph.

    Memory, in units of the ensemble's parameters: 4 (omega, Omega, theta*, theta_old); 1 more in a
    step (the previous omega) and 1 more in `penalty` (its gradient).

    Args:
        strength: c. Van de Ven et al. (2022) use 10, 5e4 and 5e3 on task-, domain- and
            class-incremental SplitMNIST.
        xi: keeps Omega finite where a parameter did not move.

    >>> import torch, orderless as ol
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 2), n=3)
    >>> pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    >>> si = ol.SI(particles, strength=10.0)
    >>> pf.register(si)
    >>> loss = ol.per_particle(torch.nn.functional.cross_entropy)
    >>> x, y = torch.randn(16, 2), torch.arange(16) % 2
    >>> info = pf.step(lambda: loss(particles(x), y))
    >>> si.end_task()
    >>> si
    SI(strength=10, 1 tasks)
    """

    reads_gradients = True

    def __init__(self, particles: Ensemble, strength: float = 1.0, xi: float = 0.1) -> None:
        super().__init__(particles, strength)
        if not xi > 0.0:
            raise ValueError(f"xi must be positive, got {xi}")
        self.xi = xi
        values = {name: theta.detach() for name, theta in self.parameters.items()}
        self.path = {name: torch.zeros_like(theta) for name, theta in values.items()}  # omega
        self.importance = {name: torch.zeros_like(theta) for name, theta in values.items()}  # Omega
        self.center = {name: theta.clone() for name, theta in values.items()}  # theta*
        self._before = {name: theta.clone() for name, theta in values.items()}  # theta_old

    def energy(self, x: Tensor | None = None, outputs: Any = None) -> Tensor:
        """c sum Omega (theta - theta*)^2 of each particle: `[N]`. Needs no data."""
        return self.strength * self._squares()

    def _curvature(self, name: str) -> Tensor:
        return 2 * self.strength * self.importance[name].clamp(min=0.0)

    @torch.no_grad()
    def before_update(self) -> None:
        for name, theta in self.parameters.items():
            self._before[name].copy_(theta)

    @torch.no_grad()
    def after_update(self) -> None:
        super().after_update()
        for name, theta in self.parameters.items():
            gradient = theta.grad
            if gradient is not None:
                if self.closed and self.tasks:
                    gradient = gradient + self._curvature(name).mul_(theta - self.center[name])
                self.path[name].addcmul_(gradient, self._before[name].sub_(theta))

    @torch.no_grad()
    def end_task(self, data: Data | None = None, active: Tensor | None = None) -> None:
        """Turn the path integral into importances. Needs no data."""
        for name, theta in self.parameters.items():
            path = self.path[name]
            center = self.center[name]
            self.importance[name].add_(path / ((theta - center).square() + self.xi))
            center.copy_(theta)
            path.zero_()
        self.tasks += 1

    def _state(self) -> dict[str, Named]:
        return {"path": self.path, "importance": self.importance, "center": self.center}
