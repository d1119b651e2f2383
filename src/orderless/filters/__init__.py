"""Filters: how particles move and how they are weighted, one file per filter."""

from .averaging import AveragingParticles, GradientDescent, Uniform
from .base import ParticleFilter, Predictor
from .bootstrap import BootstrapParticleFilter
from .gaussian_sum import GaussianSumFilter
from .gradient import GradientFilter, GradientStep, Weighting
from .step import Step, StepInfo, SteppedFilter
from .weighted import Linearized, Trapezoid, WeightedParticleFilter

__all__ = [
    "AveragingParticles", "BootstrapParticleFilter", "GaussianSumFilter", "GradientDescent",
    "GradientFilter", "GradientStep", "Linearized", "ParticleFilter", "Predictor",
    "Step", "StepInfo", "SteppedFilter", "Trapezoid", "Uniform",
    "WeightedParticleFilter", "Weighting",
]  # fmt: skip
