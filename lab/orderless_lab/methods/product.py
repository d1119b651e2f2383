"""The product of task posteriors as a method: with one network, and with particles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import orderless as ol

from .registry import NETWORK, PARTICLES, Style, method
from .settings import Positive, Settings

if TYPE_CHECKING:
    from .learners import ProductLearner
    from .setup import Setup


class ProductSettings(Settings):
    """Settings of the product of task posteriors."""

    product_lr: Positive = 0.1
    """SGD's learning rate for the product; it may be large, since every task starts anew."""
    product_hidden_lr: Positive | None = None
    """Learning rate of all layers but the last, with SGD or Adam; None: that of the last."""
    product_loss: Literal["squared", "cross-entropy"] = "squared"
    """Loss of the product's networks: "squared" error against 0 and 1, or "cross-entropy"."""
    product_prior: Positive | None = None
    """The product's prior precision p_0; None: 1e-3 of the mean diagonal of the moments."""


READ = ("optimizer", "adam_lr", *NETWORK)


@method(
    "product",
    "tasks from one start, merged layer by layer; no task order",
    label="Product of task posteriors",
    style=Style("#8B2E5D", "p"),
    settings=ProductSettings,
    reads=READ,
)
def product(setup: Setup) -> ProductLearner:
    return product_of(setup, 1)


@method(
    "product+particles",
    "the same with many networks",
    label="Product of task posteriors, particles",
    style=Style("#8B2E5D", "d"),
    settings=ProductSettings,
    reads=READ + PARTICLES,
    slow=True,
)
def product_with_particles(setup: Setup) -> ProductLearner:
    return product_of(setup, setup.settings.particles)


def product_of(setup: Setup, n: int) -> ProductLearner:
    import torch

    from .learners.product import ProductLearner, zero_head

    own = setup.own(ProductSettings)
    particles = setup.ensemble(n)
    head = zero_head(particles)

    def make_optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        last: dict[str, Any] = {"params": []}
        hidden: dict[str, Any] = {"params": []}
        trained = (p for p in particles.parameters() if p.requires_grad)
        for parameter, network_s in zip(parameters, trained, strict=True):
            group = last if any(network_s is each for each in head) else hidden
            group["params"].append(parameter)
        if own.product_hidden_lr is not None:
            hidden["lr"] = own.product_hidden_lr
        if setup.settings.optimizer == "adam":
            return torch.optim.Adam([last, hidden], lr=setup.settings.adam_lr)
        return torch.optim.SGD([last, hidden], lr=own.product_lr)

    filter = ol.PosteriorProduct(particles, make_optimizer, prior_precision=own.product_prior)
    return ProductLearner(setup.scenario, filter, own.product_loss)
