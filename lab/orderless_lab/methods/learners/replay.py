"""Experience replay: a small random sample of everything seen so far."""

from typing import Any

import torch
from torch import Tensor


class Reservoir:
    """At most `capacity` samples; each sample seen is kept with equal probability (Vitter 1985).

    `mix` appends as many stored samples to a batch as the batch has. Both choices use one generator
    that is part of the state, so a resumed run makes the same choices.
    """

    def __init__(self, capacity: int, seed: int) -> None:
        if capacity < 1:
            raise ValueError(f"the replay buffer must hold at least 1 sample, got {capacity}")
        self.capacity = capacity
        self.count = 0
        self.stored: tuple[Tensor, ...] = ()
        self._generator = torch.Generator().manual_seed(seed)

    def mix(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """Append stored samples to the batch; afterwards the batch may enter the store."""
        mixed = batch
        device = batch[0].device
        if self.count:
            self.stored = tuple(s.to(device) for s in self.stored)  # on the host after a resume
            held = min(self.count, self.capacity)
            size = (len(batch[0]),)
            chosen = torch.randint(held, size, generator=self._generator).to(device)
            pairs = zip(batch, self.stored, strict=True)
            mixed = tuple(torch.cat([b, stored[chosen]]) for b, stored in pairs)
        self._add(batch)
        return mixed

    def _add(self, batch: tuple[Tensor, ...]) -> None:
        if not self.stored:
            self.stored = tuple(b.new_zeros((self.capacity, *b.shape[1:])) for b in batch)
        size = batch[0].shape[0]
        order = self.count + torch.arange(size)  # the number of samples before each of these
        places = (torch.rand(size, generator=self._generator).double() * (order + 1)).long()
        places = torch.where(order < self.capacity, order, places)
        kept = places < self.capacity
        for source, place in zip(kept.nonzero()[:, 0].tolist(), places[kept].tolist(), strict=True):
            for stored, b in zip(self.stored, batch, strict=True):
                stored[place] = b[source]
        self.count += size

    def state_dict(self) -> dict[str, Any]:
        generator = self._generator.get_state()
        return {"count": self.count, "stored": list(self.stored), "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.stored = tuple(state["stored"])
        self._generator.set_state(state["generator"])
