"""Controls that keep or see more than the current batch: replay, kept samples, all tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .registry import DESCENT, NETWORK, Style, method
from .settings import Count, Positive, Settings, Size

if TYPE_CHECKING:
    from .learners import KeptLearner, Learner
    from .setup import Setup

SKY = "#56B4E9"


class ReplaySettings(Settings):
    """Settings of experience replay."""

    replay_buffer: Size = 200
    """Samples that experience replay keeps."""


@method(
    "er",
    "experience replay, one network (a control)",
    label="Experience replay",
    style=Style(SKY, "<"),
    settings=ReplaySettings,
    reads=DESCENT,
)
def er(setup: Setup) -> Learner:
    from .learners import Reservoir

    seed = setup.settings.seed_of_batches(setup.seed)
    replay = Reservoir(setup.own(ReplaySettings).replay_buffer, seed)
    return setup.learner(setup.descent(), replay=replay)


class KeptSettings(Settings):
    """Settings of training on kept samples."""

    kept_share: Positive = 1 / 16
    """Share of the samples that is kept, chosen by their hash."""
    kept_epochs: Count = 20
    """Passes of Adam over the kept samples, from the start, at the end of every task."""


@method(
    "kept",
    "one network, trained anew on samples kept by their hash; no task order",
    label="Kept sample",
    style=Style(SKY, "h"),
    settings=KeptSettings,
    reads=("adam_lr", *NETWORK),
)
def kept(setup: Setup) -> KeptLearner:
    from .learners import KeptLearner

    own = setup.own(KeptSettings)
    return KeptLearner(
        setup.scenario,
        lambda: setup.descent("adam"),
        share=own.kept_share,
        epochs=own.kept_epochs,
        batch_size=setup.settings.batch_size,
    )


@method(
    "joint",
    "all tasks at once, one network",
    label="Joint training",
    style=Style(SKY, ">"),
    reads=DESCENT,
    joint=True,
)
def joint(setup: Setup) -> Learner:
    return setup.learner(setup.descent(), joint=True)
