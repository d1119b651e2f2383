"""The exact filter: frozen features, and the posterior of a linear head in closed form."""

from .. import filters as filters  # first, because it imports modules of this room
