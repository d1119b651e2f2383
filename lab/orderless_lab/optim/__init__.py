"""Optimizers with a state per particle: TRAC."""

from .trac import TRAC

__all__ = ["TRAC"]
