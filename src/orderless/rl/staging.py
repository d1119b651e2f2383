"""Frames on their way to the device and actions on their way back, while the host goes on.

A GPU reads and writes pinned memory by itself; for other memory the host must wait. On the CPU both
are the arrays themselves.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .environment import Array


class Staging:
    """Room for the frames and actions of `n_envs` environments, of which `rows` are some."""

    def __init__(self, n_envs: int, device: torch.device) -> None:
        self.n_envs, self.device = n_envs, device
        self._frames: Tensor | None = None
        self._actions: Tensor | None = None
        self._written = torch.cuda.Event() if device.type == "cuda" else None

    def frames(self, observations: Array, rows: slice) -> Tensor:
        """The frames where the device can fetch them; the last ones of these rows are gone.

        Nobody still reads those: the actions that answer them have arrived.
        """
        frames = torch.from_numpy(observations)
        if self._written is None:
            return frames
        if self._frames is None:
            shape = self.n_envs, *frames.shape[1:]
            self._frames = torch.empty(shape, dtype=frames.dtype, pin_memory=True)
        # By numpy: torch would wake all cores, which then spin where the environments want to play.
        np.copyto(self._frames.numpy()[rows], observations)
        return self._frames[rows]

    def fetch(self, actions: Tensor, rows: slice) -> Callable[[], Array]:
        """Begin to bring actions to the host; the function returned waits for them."""
        if self._written is None:
            return actions.numpy
        if self._actions is None:
            self._actions = torch.empty(self.n_envs, dtype=actions.dtype, pin_memory=True)
        host, written = self._actions[rows], self._written
        host.copy_(actions, non_blocking=True)
        written.record()

        def arrived() -> Array:
            written.synchronize()
            return host.numpy()

        return arrived
