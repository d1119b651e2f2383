"""The product of task posteriors: learned features, and a result without a task order."""

from .merging import merge
from .product import PosteriorProduct

__all__ = ["PosteriorProduct", "merge"]
