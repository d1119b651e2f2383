"""Optimizers that know of particles: TRAC, tuned per network."""

from .trac import TRAC

__all__ = ["TRAC"]
