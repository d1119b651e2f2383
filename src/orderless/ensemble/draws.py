"""The random numbers of a step, drawn again for its second evaluation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .ensemble import Ensemble


class Draws:
    """What the next forward passes of an ensemble will draw: its own noise and torch's."""

    def __init__(self, particles: Ensemble) -> None:
        self.particles = particles
        self.counter = particles.noise_counter.clone()
        self.buffers = [(b, b.clone()) for b in particles.particle_buffers().values()]
        generators = _generators(particles.device)
        self.generators = [(generator, generator.get_state()) for generator in generators]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Forward passes inside draw the same numbers again and change no buffers."""
        now = [(generator, generator.get_state()) for generator, _ in self.generators]
        for generator, state in self.generators:
            generator.set_state(state)
        try:
            with self.particles.replay(self.counter):
                yield
        finally:
            for generator, state in now:
                generator.set_state(state)

    @torch.no_grad()
    def rewind(self) -> None:
        """Go back to where nothing had been drawn and no buffer had changed."""
        self.particles.noise_counter.copy_(self.counter)
        for buffer, value in self.buffers:
            buffer.copy_(value)
        for generator, state in self.generators:
            generator.set_state(state)


def _generators(device: torch.device) -> list[torch.Generator]:
    """torch's generators; none while a CUDA graph is recorded, when they cannot be read."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return []
    used = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        used.append(torch.cuda.default_generators[index])
    return used
