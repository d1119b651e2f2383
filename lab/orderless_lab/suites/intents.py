"""Intents: classify sentences by what they want, one group of intents after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from orderless.ensemble import find_device
from orderless.features import cached, minilm

from ..datasets.load import IntentSource, load_intents
from .base import Outline, Preset
from .scenario import Kind, Scenario
from .supervised import (
    Assign,
    SupervisedSettings,
    SupervisedSuite,
    assigned,
    outline,
    split_into_tasks,
)

if TYPE_CHECKING:
    from orderless.features.published import Sentences

SIZES = {"banking77": (7, 11), "clinc150": (10, 15)}  # tasks, intents of a task
_minilm = lru_cache(minilm)


class Intents(Scenario):
    """Banking77 in 7 tasks of 11 intents, or CLINC150 in 10 tasks of 15, as sentence features.

    Intents are sorted by name. Inputs are features of a frozen sentence encoder, `[B, 384]` with
    MiniLM, of deviation about 1, so that any method can learn from them. They are computed once and
    kept in the user cache.

    Args:
        kind, root, assign, assign_seed, validation, device: as for `SplitMNIST`.
        source: "banking77" or "clinc150".
        encoder: default `ol.features.minilm()`.
    """

    def __init__(
        self,
        kind: Kind = "class",
        *,
        source: IntentSource = "banking77",
        root: str | Path | None = None,
        assign: Assign = "fixed",
        assign_seed: int = 0,
        validation: float = 0.0,
        encoder: Sentences | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        training, test = load_intents(source, root)
        encoder = _minilm() if encoder is None else encoder
        x, x_test = (
            cached(encoder, encoder.tokenize(part.texts).to(find_device(device)))
            for part in (training, test)
        )
        names, numbers = np.unique(training.labels + test.labels, return_inverse=True)
        y, y_test = torch.from_numpy(numbers).to(x.device).split([len(x), len(x_test)])
        fixed = torch.arange(len(names)).view(SIZES[source]).tolist()
        groups = assigned(fixed, assign, assign_seed)
        titles = [f"{names[group[0]]} ... {names[group[-1]]}" for group in groups]
        tasks = split_into_tasks((x, y, x_test, y_test), groups, titles, validation, device)
        super().__init__(tasks, kind=kind, name="intents")


class IntentsSettings(SupervisedSettings):
    """Settings of the intents."""

    sentences: IntentSource = "banking77"
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
        tasks, classes = SIZES[settings.sentences]
        return outline(variant, tasks, classes, (384,))

    def load(
        self, variant: Any, settings: Any, seed: int, root: str | None, device: str
    ) -> Intents:
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
