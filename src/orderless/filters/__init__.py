"""Filters: how particles move and how they are weighted."""

from .base import ParticleFilter, Predictor, StepInfo
from .bootstrap import BootstrapParticleFilter
from .gradient import (
    AveragingParticles,
    GradientDescent,
    GradientFilter,
    Linearized,
    Trapezoid,
    Uniform,
    WeightedParticleFilter,
)
from .merging import merge_filters
from .weights import Step, Weighting

__all__ = [
    "AveragingParticles", "BootstrapParticleFilter", "GradientDescent", "GradientFilter",
    "Linearized", "ParticleFilter", "Predictor", "Step", "StepInfo", "Trapezoid", "Uniform",
    "WeightedParticleFilter", "Weighting", "merge_filters",
]  # fmt: skip
