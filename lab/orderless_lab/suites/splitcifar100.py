"""The suite SplitCIFAR100: the superclasses of CIFAR-100 as 20 tasks of five classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Outline, Preset
from .supervised import SupervisedSettings, SupervisedSuite, maker, outline

if TYPE_CHECKING:
    from torch import nn

    from .splits import SplitCIFAR100


class SplitCIFAR100Settings(SupervisedSettings):
    """Settings of SplitCIFAR100."""

    augment: Literal["flip-crop", "none"] = "flip-crop"
    """Training images: "flip-crop" (at random), or "none" (as they are)."""
    network: Literal["released", "wide"] = "released"
    """"released" (the convolutional network of the paper's code) or "wide" (one convolution of
    `hidden` channels)."""


class SplitCIFAR100Suite(SupervisedSuite):
    settings: ClassVar[type[SupervisedSettings]] = SplitCIFAR100Settings

    def presets(self, variant: str) -> Mapping[str, Preset]:
        make = self.settings
        strong = {"assign": "random", "optimizer": "adam", "iterations": 2000, "particles": 1}
        small = {"network": "wide", "hidden": 16, "augment": "none", "iterations": 40}
        small |= {"lr": 0.05, "particles": 4, "fisher_samples": 50, "score_after": "last"}
        return {
            "table1": Preset(make(lr=1e-2), 10, 3),
            "table1-low": Preset(make(lr=1e-4), 10, 3),
            "table1-high": Preset(make(lr=1e-1), 10, 3),
            "table1-adam": Preset(make(optimizer="adam", adam_lr=1e-4), 10, 3),
            "demo": Preset(self.demo(**small).settings, 2, 1),
            "paper": Preset(make(batch_size=8, lr=0.01, init="perturb"), 10, 1),
            "strong": Preset(make(**strong, fisher_samples=None), 1, 20),
        }

    def outline(self, variant: str, settings: Any) -> Outline:
        return outline(variant, 20, 5, (3, 32, 32))

    def load(
        self, variant: Any, settings: Any, seed: int, root: str | None, device: str
    ) -> SplitCIFAR100:
        from .splits import SplitCIFAR100

        return SplitCIFAR100(
            variant,
            root=root,
            assign=settings.assign,
            assign_seed=seed,
            validation=settings.validation,
            augment=settings.augment == "flip-crop",
            device=device,
        )

    def network(self, shapes: Any, settings: Any) -> Callable[[], nn.Module]:
        from .networks import released_cifar, wide_cifar

        if settings.network == "wide":
            return maker(wide_cifar, settings.hidden, shapes.outputs)
        return maker(released_cifar, shapes.outputs)


SPLIT_CIFAR100 = SplitCIFAR100Suite("splitcifar100", "SplitCIFAR100", "20 tasks of 5 classes")
