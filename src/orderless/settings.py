"""Settings and presets, where they were before `orderless.methods.settings`."""

from .methods.presets import *  # noqa: F403
from .methods.settings import *  # noqa: F403
from .methods.supervised import STRENGTHS  # noqa: F401
