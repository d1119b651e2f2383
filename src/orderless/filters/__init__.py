"""How particles move and what they weigh: one file per filter."""

from .averaging import AveragingParticles
from .base import ParticleFilter
from .bootstrap import BootstrapParticleFilter
from .descent import GradientDescent
from .gradient import GradientFilter
from .stepping import StepInfo
from .weighted import WeightedParticleFilter

__all__ = [
    "AveragingParticles",
    "BootstrapParticleFilter",
    "GradientDescent",
    "GradientFilter",
    "ParticleFilter",
    "StepInfo",
    "WeightedParticleFilter",
]
