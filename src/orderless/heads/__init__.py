"""Heads on disk: what `orderless fit` writes, for images and tables in files, and for arrays."""

from .head import Head, Recipe

__all__ = ["Head", "Recipe"]
