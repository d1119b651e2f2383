"""The product of task posteriors: learned features whose result has no task order."""

from .product import PosteriorProduct

__all__ = ["PosteriorProduct"]
