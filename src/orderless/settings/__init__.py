"""An earlier name of `orderless.methods.settings` and `orderless.methods.presets`."""

from ..methods.presets import *  # noqa: F403
from ..methods.settings import *  # noqa: F403
from ..methods.supervised import STRENGTHS  # noqa: F401
