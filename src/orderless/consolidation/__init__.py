"""Penalties that protect earlier tasks: EWC, SI and LwF over all particles at once."""

from .base import Consolidation
from .ewc import EWC
from .fisher import fisher_information
from .lwf import LwF
from .si import SI

__all__ = ["EWC", "SI", "Consolidation", "LwF", "fisher_information"]
