"""The product of task posteriors: learned features, and a result without a task order."""

from .product import PosteriorProduct

__all__ = ["PosteriorProduct"]
