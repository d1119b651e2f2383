"""Convolutions and pooling of N networks by Triton kernels, for IMPALA on a GPU.

To import this room registers them with `orderless.ensemble.rules`: every ensemble then uses them
where they apply, in reduced precision on a GPU.
"""

from . import rules

__all__ = ["rules"]
