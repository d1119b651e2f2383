"""Scenarios by seed, loaded where they are needed and only once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..methods.settings import SharedSettings
from .benchmarks import find_benchmark


@dataclass
class Scenarios:
    """`scenarios[seed]`; with fixed classes all seeds share one."""

    benchmark: str
    kind: str
    settings: SharedSettings
    root: str | None
    device: str
    _loaded: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getitem__(self, seed: int) -> Any:
        key = self.settings.seed_of_tasks(seed)
        if key not in self._loaded:
            self._loaded.clear()
            build = find_benchmark(self.benchmark).scenario
            self._loaded[key] = build(self.kind, self.settings, key, self.root, self.device)
        return self._loaded[key]

    def __getstate__(self) -> dict[str, object]:
        """Travels to another process without the data."""
        return {**self.__dict__, "_loaded": {}}
