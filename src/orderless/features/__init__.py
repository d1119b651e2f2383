"""Feature maps for the exact filter: random, drawn without looking at data, exact to the bit."""

from .concatenate import Concatenate
from .convolutional import RandomConvolution
from .relu import RandomReLU

__all__ = ["Concatenate", "RandomConvolution", "RandomReLU"]
