"""Feature maps for the exact head: random, from dead leaves, or of a frozen network.

All but backbones have the same bits on every device. None uses data.
"""

from .backbone import Backbone, cached
from .convolutional import RandomConvolution
from .efficientnet import efficientnet_lite
from .leaves import DeadLeaves, dead_leaves
from .relu import RandomReLU
from .sentences import minilm

__all__ = [
    "Backbone", "DeadLeaves", "RandomConvolution", "RandomReLU", "cached", "dead_leaves",
    "efficientnet_lite", "minilm",
]  # fmt: skip
