"""The exact filter over several processes and machines."""

from .fit import fit

__all__ = ["fit"]
