"""N networks as one: stacked parameters and buffers, fast batched layers, initialisation."""

from .device import find_device
from .ensemble import Ensemble
from .initialization import Perturb
from .losses import per_particle
from .stacking import ParticleParameter

__all__ = ["Ensemble", "ParticleParameter", "Perturb", "find_device", "per_particle"]
