"""Learning whose result does not depend on the order of the data."""

from typing import Any

from . import audit, features, scenarios, theory
from .audit import order_sensitivity
from .consolidation import EWC, SI, LwF
from .filters import (
    AveragingParticles,
    BootstrapParticleFilter,
    GaussianSumFilter,
    GradientDescent,
    ParticleFilter,
    PosteriorProduct,
    Predictive,
    RaoBlackwellizedFilter,
    WeightedParticleFilter,
)
from .optim import TRAC
from .particles import Ensemble, ParticleParameter, Perturb, per_particle
from .scenarios import Task
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
    "PosteriorProduct",
    "Predictive",
    "RaoBlackwellizedFilter",
    "Task",
    "WeightedParticleFilter",
    "__version__",
    "audit",
    "features",
    "load",
    "order_sensitivity",
    "per_particle",
    "save",
    "scenarios",
    "theory",
]

# scikit-learn is not needed until one of these is: no part of `import orderless`, nor of `*`
_ESTIMATORS = ("ParticleClassifier", "ParticleRegressor")


def __getattr__(name: str) -> Any:
    if name in _ESTIMATORS:
        from . import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ESTIMATORS])
