"""How particles move and what they weigh: one file per filter."""

from .averaging import AveragingParticles, Uniform
from .base import ParticleFilter, Predictor
from .bootstrap import BootstrapParticleFilter
from .descent import GradientDescent
from .exact.rao_blackwellized import Predictive, RaoBlackwellizedFilter
from .gaussian_sum import GaussianSumFilter
from .gradient import GradientFilter, GradientStep, Weighting
from .product import PosteriorProduct
from .step import Step, StepInfo, SteppedFilter
from .weighted import Linearized, Trapezoid, WeightedParticleFilter

__all__ = [
    "AveragingParticles", "BootstrapParticleFilter", "GaussianSumFilter", "GradientDescent",
    "GradientFilter", "GradientStep", "Linearized", "ParticleFilter", "PosteriorProduct",
    "Predictive", "Predictor", "RaoBlackwellizedFilter", "Step", "StepInfo", "SteppedFilter",
    "Trapezoid", "Uniform", "WeightedParticleFilter", "Weighting",
]  # fmt: skip
