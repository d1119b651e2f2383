"""Learning whose result does not depend on the order of the data."""

import typing as _typing

from .lazy import on_first_use as _on_first_use

__version__ = "0.2.0"

if _typing.TYPE_CHECKING:
    from . import audit, distributed, features, scenarios, theory
    from .audit import order_sensitivity
    from .consolidation import EWC, SI, LwF
    from .estimators import ParticleClassifier as ParticleClassifier
    from .estimators import ParticleRegressor as ParticleRegressor
    from .evaluation import Prequential, prequential
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

# without the estimators, so that `from orderless import *` does not need scikit-learn
__all__ = [
    "EWC", "SI", "TRAC", "AveragingParticles", "BootstrapParticleFilter", "Ensemble",
    "GaussianSumFilter", "GradientDescent", "LwF", "ParticleFilter", "ParticleParameter", "Perturb",
    "PosteriorProduct", "Predictive", "Prequential", "RaoBlackwellizedFilter", "Task",
    "WeightedParticleFilter", "__version__", "audit", "distributed", "features", "load",
    "order_sensitivity", "per_particle", "prequential", "save", "scenarios", "theory",
]  # fmt: skip

__getattr__, __dir__ = _on_first_use(__name__)
