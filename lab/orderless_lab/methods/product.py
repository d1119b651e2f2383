"""The product of task posteriors as a method: with one network, and with particles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal

import orderless as ol

from .config import Config, Positive
from .registry import Style, method

if TYPE_CHECKING:
    from .learners import ProductLearner
    from .setup import Setup


@dataclass(frozen=True)
class ProductSettings(Config):
    """Settings of the product of task posteriors."""

    product_lr: Positive = 0.1
    """SGD's learning rate for the product; it may be large, since every task starts anew."""
    product_hidden_lr: Positive | None = None
    """Learning rate of all layers but the last, with SGD or Adam; None: that of the last."""
    product_loss: Literal["squared", "cross-entropy"] = "squared"
    """Loss of the product's networks: "squared" error against 0 and 1, or "cross-entropy"."""
    product_prior: Positive | None = None
    """The product's prior precision p_0; None: 1e-3 of the mean diagonal of the moments."""


LABEL, COLOUR = "Product of task posteriors", "#8B2E5D"
common: Any = {"config": ProductSettings}
of_one: Any = {"label": LABEL, "style": Style(COLOUR, "p"), "ignores": ("lr",)}
of_many: Any = {"label": f"{LABEL}, particles", "style": Style(COLOUR, "d"), "ignores": ("lr",)}


@method("product", "tasks from one start, merged layer by layer; no task order", **of_one, **common)
def _product(setup: Setup, n: int = 1) -> ProductLearner:
    import torch

    from .learners.product import ProductLearner, zero_head

    s, own = setup.settings, setup.config(ProductSettings)
    particles = setup.ensemble(n)
    head = zero_head(particles)
    last = [any(each is p for each in head) for p in particles.parameters() if p.requires_grad]
    hidden = [not is_last for is_last in last]

    def make_optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        groups: list[Any] = [{"params": [*compress(parameters, which)]} for which in (last, hidden)]
        if own.product_hidden_lr is not None:
            groups[1]["lr"] = own.product_hidden_lr
        if s.optimizer == "adam":
            return torch.optim.Adam(groups, lr=s.adam_lr)
        return torch.optim.SGD(groups, lr=own.product_lr)

    filter = ol.PosteriorProduct(particles, make_optimizer, prior_precision=own.product_prior)
    return ProductLearner(setup.scenario, filter, own.product_loss)


@method("product+particles", "the same with many networks", True, slow=True, **of_many, **common)
def _product_of_particles(setup: Setup) -> ProductLearner:
    return _product(setup, setup.settings.particles)
