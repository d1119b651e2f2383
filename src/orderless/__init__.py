"""Learning whose result does not depend on the order of the data."""

from . import features, scenarios, theory
from .consolidation import EWC, SI, LwF
from .filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GaussianSumFilter,
    GradientDescent,
    ParticleFilter,
    Predictive,
    RaoBlackwellizedFilter,
    WeightedParticleFilter,
)
from .optim import TRAC
from .particles import Ensemble, ParticleParameter, Perturb, per_particle
from .storage import load, save
from .version import __version__

__all__ = [
    "EWC",
    "SI",
    "TRAC",
    "AveragingParticles",
    "BootstrapParticleFilter",
    "Ensemble",
    "GaussianSumFilter",
    "GradientDescent",
    "LwF",
    "ParticleFilter",
    "ParticleParameter",
    "Perturb",
    "Predictive",
    "RaoBlackwellizedFilter",
    "WeightedParticleFilter",
    "__version__",
    "features",
    "load",
    "per_particle",
    "save",
    "scenarios",
    "theory",
]
