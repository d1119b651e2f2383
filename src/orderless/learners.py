"""The learners of `orderless.methods`, under the name that earlier versions had for them."""

from .methods.learners import *  # noqa: F403
from .methods.learners import __all__ as __all__
