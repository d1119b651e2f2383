"""Learning whose result does not depend on the order of the data."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.3.0.dev0"

if _TYPE_CHECKING:
    from . import (
        audit,
        consolidation,
        distributed,
        ensemble,
        exact,
        features,
        filters,
        io,
        metrics,
        product,
    )
    from . import estimators as estimators
    from .audit import order_sensitivity
    from .consolidation import EWC, SI, LwF
    from .ensemble import Ensemble, ParticleParameter, Perturb, per_particle
    from .estimators import ParticleClassifier as ParticleClassifier
    from .estimators import ParticleRegressor as ParticleRegressor
    from .evaluation import Prequential, prequential
    from .exact import ExactHead
    from .filters import (
        AveragingParticles,
        BootstrapParticleFilter,
        GaussianSumFilter,
        GradientDescent,
        ParticleFilter,
        WeightedParticleFilter,
    )
    from .io import load, save
    from .kept import KeptSample
    from .product import PosteriorProduct, merge
    from .scaling import ExactScaler
    from .tasks import Task

# the module of each public name; it is imported when the name is first used
_MODULES = {
    "AveragingParticles": "filters",
    "BootstrapParticleFilter": "filters",
    "EWC": "consolidation",
    "Ensemble": "ensemble",
    "ExactHead": "exact",
    "ExactScaler": "scaling",
    "GaussianSumFilter": "filters",
    "GradientDescent": "filters",
    "KeptSample": "kept",
    "LwF": "consolidation",
    "ParticleClassifier": "estimators",
    "ParticleFilter": "filters",
    "ParticleParameter": "ensemble",
    "ParticleRegressor": "estimators",
    "Perturb": "ensemble",
    "PosteriorProduct": "product",
    "Prequential": "evaluation",
    "SI": "consolidation",
    "Task": "tasks",
    "WeightedParticleFilter": "filters",
    "load": "io",
    "merge": "product",
    "order_sensitivity": "audit",
    "per_particle": "ensemble",
    "prequential": "evaluation",
    "save": "io",
}
_ROOMS = (
    "audit", "consolidation", "distributed", "ensemble", "estimators", "exact", "features",
    "filters", "io", "metrics", "product",
)  # fmt: skip

# without the estimators, so that `from orderless import *` does not need scikit-learn
__all__ = [
    "AveragingParticles", "BootstrapParticleFilter", "EWC", "Ensemble", "ExactHead",
    "ExactScaler", "GaussianSumFilter", "GradientDescent", "KeptSample", "LwF", "ParticleFilter",
    "ParticleParameter", "Perturb", "PosteriorProduct", "Prequential", "SI", "Task",
    "WeightedParticleFilter", "__version__", "audit", "consolidation", "distributed",
    "ensemble", "exact", "features", "filters", "io", "load", "merge", "metrics",
    "order_sensitivity", "per_particle", "prequential", "product", "save",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return _import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # the next use finds the attribute
    return value


def __dir__() -> list[str]:
    hidden = [name for name in globals() if name.startswith("__")]
    return sorted({*_MODULES, *_ROOMS, *hidden})
