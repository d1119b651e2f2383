"""The exact filter over any number of processes and machines: sums have no order."""

from .fit import fit

__all__ = ["fit"]
