"""An earlier name of `orderless.methods.settings`."""

from ..methods.settings import *  # noqa: F403
