"""The suite Intents: what a sentence wants, in tasks of groups of intents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import Outline, Preset
from .supervised import SupervisedSettings, SupervisedSuite, outline

if TYPE_CHECKING:
    from .sentences import Intents


class IntentsSettings(SupervisedSettings):
    """Settings of the intents."""

    sentences: Literal["banking77", "clinc150"] = "banking77"
    """The data set: "banking77" or "clinc150"."""


@dataclass
class IntentsSuite(SupervisedSuite):
    settings: ClassVar[type[SupervisedSettings]] = IntentsSettings
    variants: tuple[str, ...] = ("class", "task", "domain")

    def presets(self, variant: str) -> Mapping[str, Preset]:
        return {
            "table1": Preset(self.settings(), 10, 3),
            "table1-adam": Preset(self.settings(optimizer="adam"), 10, 3),
            "demo": self.demo(),
            "own": self.own(),
        }

    def outline(self, variant: str, settings: Any) -> Outline:
        tasks, classes = {"banking77": (7, 11), "clinc150": (10, 15)}[settings.sentences]
        return outline(variant, tasks, classes, (384,))

    def load(
        self, variant: Any, settings: Any, seed: int, root: str | None, device: str
    ) -> Intents:
        from .sentences import Intents

        return Intents(
            variant,
            root=root,
            source=settings.sentences,
            assign=settings.assign,
            assign_seed=seed,
            validation=settings.validation,
            device=device,
        )


INTENTS = IntentsSuite(
    "intents", "Intents", "what a sentence wants: features of a frozen sentence encoder"
)
