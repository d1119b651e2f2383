"""An earlier name of `orderless.methods.learners`."""

from ..methods.learners import *  # noqa: F403
from ..methods.learners import __all__ as __all__
