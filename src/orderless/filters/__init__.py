"""How particles move and what they weigh: one file per filter."""

from .averaging import AveragingParticles
from .base import ParticleFilter
from .bootstrap import BootstrapParticleFilter
from .descent import GradientDescent
from .exact.rao_blackwellized import Predictive, RaoBlackwellizedFilter
from .gaussian_sum import GaussianSumFilter
from .gradient import GradientFilter
from .product import PosteriorProduct
from .stepping import StepInfo
from .weighted import WeightedParticleFilter

__all__ = [
    "AveragingParticles",
    "BootstrapParticleFilter",
    "GaussianSumFilter",
    "GradientDescent",
    "GradientFilter",
    "ParticleFilter",
    "PosteriorProduct",
    "Predictive",
    "RaoBlackwellizedFilter",
    "StepInfo",
    "WeightedParticleFilter",
]
