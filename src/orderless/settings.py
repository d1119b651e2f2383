"""The settings of `orderless.methods`, under the name that earlier versions had for them."""

from .methods.settings import *  # noqa: F403
