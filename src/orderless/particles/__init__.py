"""N networks as one: stacked parameters and buffers, fast batched layers, initialisation."""

from .ensemble import Ensemble
from .initialization import Perturb
from .losses import per_particle
from .parameter import ParticleParameter

__all__ = ["Ensemble", "ParticleParameter", "Perturb", "per_particle"]
