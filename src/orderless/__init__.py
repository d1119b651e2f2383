"""Learning whose result does not depend on the order of the data."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.3.0"

# Every public name and its module, which is imported when the name is first used.
_HOMES = {
    "AveragingParticles": "filters",
    "BootstrapParticleFilter": "filters",
    "Consolidation": "consolidation",
    "EWC": "consolidation",
    "Ensemble": "ensemble",
    "ExactClassifier": "estimators",
    "ExactHead": "exact",
    "ExactRegressor": "estimators",
    "ExactScaler": "scaling",
    "GradientDescent": "filters",
    "GradientFilter": "filters",
    "Head": "heads",
    "KeptSample": "kept",
    "LwF": "consolidation",
    "ParticleParameter": "ensemble",
    "Perturb": "ensemble",
    "PosteriorProduct": "product",
    "Prequential": "tasks",
    "SI": "consolidation",
    "Task": "tasks",
    "WeightedParticleFilter": "filters",
    "Weighting": "filters",
    "load": "io",
    "merge": "product",
    "merge_filters": "filters",
    "order_sensitivity": "audit",
    "per_particle": "ensemble",
    "prequential": "tasks",
    "save": "io",
}
_ROOMS = (
    "audit", "consolidation", "distributed", "ensemble", "estimators", "exact", "features",
    "filters", "heads", "io", "metrics", "product",
)  # fmt: skip

# `from orderless import *` does not need scikit-learn
_NEED_AN_EXTRA = {"estimators", *[name for name, home in _HOMES.items() if home == "estimators"]}
__all__ = ["__version__", *sorted({*_HOMES, *_ROOMS} - _NEED_AN_EXTRA)]  # noqa: PLE0604

if _TYPE_CHECKING:  # the same for type checkers, which cannot read the table
    from . import audit as audit
    from . import consolidation as consolidation
    from . import distributed as distributed
    from . import ensemble as ensemble
    from . import estimators as estimators
    from . import exact as exact
    from . import features as features
    from . import filters as filters
    from . import heads as heads
    from . import io as io
    from . import metrics as metrics
    from . import product as product
    from .audit import order_sensitivity as order_sensitivity
    from .consolidation import EWC as EWC
    from .consolidation import SI as SI
    from .consolidation import Consolidation as Consolidation
    from .consolidation import LwF as LwF
    from .ensemble import Ensemble as Ensemble
    from .ensemble import ParticleParameter as ParticleParameter
    from .ensemble import Perturb as Perturb
    from .ensemble import per_particle as per_particle
    from .estimators import ExactClassifier as ExactClassifier
    from .estimators import ExactRegressor as ExactRegressor
    from .exact import ExactHead as ExactHead
    from .filters import AveragingParticles as AveragingParticles
    from .filters import BootstrapParticleFilter as BootstrapParticleFilter
    from .filters import GradientDescent as GradientDescent
    from .filters import GradientFilter as GradientFilter
    from .filters import WeightedParticleFilter as WeightedParticleFilter
    from .filters import Weighting as Weighting
    from .filters import merge_filters as merge_filters
    from .heads import Head as Head
    from .io import load as load
    from .io import save as save
    from .kept import KeptSample as KeptSample
    from .product import PosteriorProduct as PosteriorProduct
    from .product import merge as merge
    from .scaling import ExactScaler as ExactScaler
    from .tasks import Prequential as Prequential
    from .tasks import Task as Task
    from .tasks import prequential as prequential


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return _import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use finds the attribute
    return value


def __dir__() -> list[str]:
    hidden = [name for name in globals() if name.startswith("__")]
    return sorted({*_HOMES, *_ROOMS, *hidden})
