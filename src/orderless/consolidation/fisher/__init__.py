"""The diagonal Fisher information of every particle, from per-sample gradients."""

from .fisher import KINDS, fisher_information

__all__ = ["KINDS", "fisher_information"]
