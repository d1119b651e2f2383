"""The exact head as a method: Gaussian heads on fixed features; the order has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import orderless as ol

from .registry import Style, method
from .settings import Settings, Size

if TYPE_CHECKING:
    from .learners import ExactLearner
    from .setup import Setup


class ExactSettings(Settings):
    """Settings of the exact head."""

    exact_map: Literal["auto", "relu", "convolution", "leaves", "lite0", "lite1", "lite2"] = "auto"
    """Features of the exact head: random "relu", "convolution", dead "leaves", or random ReLUs on
    a frozen EfficientNet ("lite0", ...); "auto" is "leaves" for images, else "relu"."""
    exact_features: Size = 2048
    """M, the number of features of each map of the exact head."""
    exact_particles: Size = 8
    """The number of maps of the exact head."""
    exact_weights: Literal["uniform", "evidence"] = "uniform"
    """How the exact head weighs its maps: "uniform" or "evidence"."""
    exact_columns: Literal["task", "label"] = "task"
    """In the domain scenario, a column per task and label ("task"), for which the task must be
    known in training, or one per label ("label"), for which it need not."""
    exact_block: Size = 4096
    """Samples gathered before they are added; this changes the speed only."""

    def bytes_held(self) -> int:
        """Bytes of the sums and the solved heads of all maps: M x M numbers, a few times over."""
        return 6 * 8 * self.exact_particles * self.exact_features**2


@method(
    "exact",
    "exact head: Gaussian heads on fixed features; the order has no effect",
    label="Exact head",
    style=Style("#7A5C00", "h"),
    settings=ExactSettings,
    reads=(),
    slow=True,
)
def exact(setup: Setup) -> ExactLearner:
    from .learners.exact import ExactLearner, backbone_features, feature_map

    own = setup.own(ExactSettings)
    # nothing is trained, so images are not augmented
    scenario = setup.scenario.mapped(backbone_features(own.exact_map))
    make_map = feature_map(own.exact_map, scenario.input_shape, own.exact_features)
    maps = setup.initial(make_map, own.exact_particles)
    maps.chunk_size = setup.settings.chunk_size
    classes = scenario.outputs if scenario.kind == "class" else scenario.classes_per_task
    head = ol.ExactHead(maps, weights=own.exact_weights, classes=classes)
    by_task = scenario.kind == "task" or own.exact_columns == "task"
    return ExactLearner(scenario, head, own.exact_block, by_task=by_task)
