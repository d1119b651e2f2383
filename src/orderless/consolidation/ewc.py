r"""Elastic weight consolidation: parameters that matter to a task are kept near their values.

Kirkpatrick et al. 2017 (arXiv:1612.00796). After task k, with theta_k the parameters there and F_k
the diagonal Fisher information of the task's data (see `fisher`), tasks k+1, ... are trained on

    L(theta) + lambda/2 sum_{j<=k} sum_p F_j,p (theta_p - theta_j,p)^2

One penalty per task ("separate") is still one quadratic, whatever the number of tasks:

    sum_j F_j (theta - theta_j)^2 = A (theta - m)^2 + c
    A <- A + F,   m <- m + F/(A + F) (theta_k - m),   c <- c + A F/(A + F) (theta_k - m)^2

"online" (Schwarz et al. 2018, arXiv:1805.06370) keeps one running Fisher and the latest anchor:

    A <- gamma A + F,   m <- theta_k,   c = 0
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ensemble import Ensemble
from .base import Data, Named, QuadraticConsolidation
from .fisher import KINDS, fisher_information


class EWC(QuadraticConsolidation):
    """Elastic weight consolidation of every particle by itself.

    Memory, in units of the ensemble's parameters: 2, whatever the number of tasks; up to 2 more in
    `end_task` (the new Fisher information and the working memory of `fisher_information`); 2 more
    for `penalty` and its gradient, where steps are not closed.

    Args:
        strength: lambda. No value fits all cases: van de Ven et al. (2022) use 1e5, 1e10 and 1e9
            on task-, domain- and class-incremental SplitMNIST with the exact Fisher.
        fisher: `"exact"`, `"sampled"` or `"empirical"`, see `fisher_information`.
        mode: `"separate"` or `"online"`.
        decay: gamma of `"online"`.
        fisher_samples: use at most this many samples of a task, from the start of its data.
        logits: picks the class scores `[B, C]` out of the network's outputs where those are more
            than one tensor, e.g. `lambda outputs: outputs[0]` for a policy with a value head.

    >>> import torch, orderless as ol
    >>> particles = ol.Ensemble(lambda: torch.nn.Linear(2, 2), n=3)
    >>> pf = ol.WeightedParticleFilter(particles, torch.optim.SGD(particles.parameters(), lr=0.1))
    >>> ewc = ol.EWC(particles, strength=1e3)
    >>> pf.register(ewc)
    >>> loss = ol.per_particle(torch.nn.functional.cross_entropy)
    >>> for x in torch.randn(2, 16, 2):  # two tasks
    ...     y = (x[:, 0] > 0).long()
    ...     info = pf.step(lambda: loss(particles(x), y))
    ...     ewc.end_task((x, y))
    >>> ewc.penalty()  # nothing has moved since
    tensor([..., ..., ...])
    """

    def __init__(
        self,
        particles: Ensemble,
        strength: float = 1e3,
        *,
        fisher: str = "exact",
        mode: str = "separate",
        decay: float = 1.0,
        fisher_samples: int | None = None,
        logits: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__(particles, strength)
        if fisher not in KINDS:
            raise ValueError(f"fisher must be one of {', '.join(KINDS)}, got {fisher!r}")
        if mode not in ("separate", "online"):
            raise ValueError(f"mode must be 'separate' or 'online', got {mode!r}")
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"decay must lie in [0, 1], got {decay}")
        if mode == "separate" and decay != 1.0:
            raise ValueError(f"decay={decay} belongs to mode='online': 'separate' forgets nothing")
        self.fisher = fisher
        self.mode = mode
        self.decay = decay
        self.fisher_samples = fisher_samples
        self.logits = logits
        self.importance = {name: torch.zeros_like(p.data) for name, p in self.parameters.items()}
        self.center = {name: torch.zeros_like(p.data) for name, p in self.parameters.items()}
        self.constant = torch.zeros(particles.n, dtype=torch.float64, device=particles.device)

    def energy(self, x: Tensor | None = None, outputs: Any = None) -> Tensor:
        """lambda/2 (sum A (theta - m)^2 + c) of each particle: `[N]`. Needs no data."""
        value = self._squares()
        return self.strength / 2 * (value + self.constant.to(value.dtype))

    def _curvature(self, name: str) -> Tensor:
        return self.strength * self.importance[name]

    def end_task(self, data: Data | None = None, active: Tensor | None = None) -> None:
        """Add the task that ends here. Changes neither particles nor gradients nor RNG state.

        `data`: a pair of tensors (x, y) or batches of such pairs. `active`: the output columns that
        count as classes of this task (task-incremental: its own; class-incremental: all seen so
        far); None: all.
        """
        if data is None:
            raise ValueError("EWC needs the task's data at its end: end_task((x, y))")
        fisher = fisher_information(
            self.particles,
            data,
            kind=self.fisher,
            active=active,
            samples=self.fisher_samples,
            logits=self.logits,
            draw=self.tasks,
            names=self.parameters,  # also those that have been frozen since
        )
        _warn_where_zero(fisher, self.particles)
        self._add(fisher)
        self.tasks += 1

    @torch.no_grad()
    def _add(self, fisher: Named) -> None:
        for name, theta in self.parameters.items():
            importance = self.importance[name]
            center = self.center[name]
            new = fisher[name]
            if self.mode == "online":
                importance.mul_(self.decay).add_(new)
                center.copy_(theta)
                continue
            total = importance + new
            # Where both are 0 the share is 0/0: any center will do, and m stays.
            share = new / total.clamp(min=torch.finfo(total.dtype).tiny)
            distance = theta - center
            bend = importance * share * distance.square()
            self.constant += bend.reshape(len(bend), -1).sum(1, dtype=torch.float64)
            center.add_(share * distance)
            importance.copy_(total)

    def _state(self) -> dict[str, Named]:
        constant = {"constant": self.constant}
        return {"importance": self.importance, "center": self.center, "constant": constant}


def _warn_where_zero(fisher: Named, particles: Ensemble) -> None:
    largest = torch.stack([f.reshape(len(f), -1).amax(1) for f in fisher.values()]).amax(0)
    count = int((largest == 0).sum())
    if count:
        warnings.warn(
            f"the Fisher information of {count} of {len(largest)} particles is 0 everywhere (they "
            "are certain of every label), so this task adds no penalty for them",
            stacklevel=3,
        )
