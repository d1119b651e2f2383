"""Learning whose result does not depend on the order of the data."""

from .filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GradientDescent,
    ParticleFilter,
    WeightedParticleFilter,
)
from .particles import Ensemble, ParticleParameter, Perturb, per_particle
from .storage import load, save

from .version import __version__
__all__ = [
    "AveragingParticles",
    "BootstrapParticleFilter",
    "Ensemble",
    "GradientDescent",
    "ParticleFilter",
    "ParticleParameter",
    "Perturb",
    "WeightedParticleFilter",
    "load",
    "per_particle",
    "save",
]
