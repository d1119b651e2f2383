"""Feature maps for the exact head: random, from dead leaves, or of a frozen network.

All but backbones have the same bits on every device. None uses data.
"""

from .backbone import Backbone, cached
from .exact import DeadLeaves, RandomConvolution, RandomReLU, dead_leaves
from .published import efficientnet_lite, minilm

__all__ = [
    "Backbone", "DeadLeaves", "RandomConvolution", "RandomReLU", "cached", "dead_leaves",
    "efficientnet_lite", "minilm",
]  # fmt: skip
