"""`orderless run regime`: the map of when weighting helps, from training to figure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NAME = "when-weighting-helps"


def draw_map(
    preset: str,
    *,
    permutations: int | None = None,
    seeds: int | None = None,
    particles: int | None = None,
    changes: list[str] | None = None,
    device: torch.device | str = "cpu",
    root: str | None = None,
    out: Path | None = None,
    dry_run: bool = False,
    command: str = "",
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Train what is missing, then write the map's JSON and figure; returns their paths."""
    import torch

    from ..experiments.engine import counting
    from ..experiments.estimate import estimate
    from ..experiments.progress import Countdown
    from ..experiments.regime import find_regime, run_regime
    from ..experiments.store import Store
    from ..report.figures import save
    from ..report.regime import summarize_regime
    from ..report.regime_figure import regime_figure
    from ..storage import write_atomically
    from ..storage.typed import as_json

    regime = find_regime(preset)
    regime = dataclasses.replace(
        regime,
        settings=regime.settings.with_text(changes or []),
        particles=regime.particles if particles is None else (particles,),
        permutations=regime.permutations if permutations is None else permutations,
        seeds=regime.seeds if seeds is None else seeds,
    )
    store = Store(out or Path("runs") / f"regime-{preset}")
    if dry_run:
        say(estimate(regime, store, root, torch.device(device)))
        return []
    with Countdown() as progress:
        records = run_regime(
            regime, store, root=root, device=device, command=command, report=counting(progress.tell)
        )
    summary = summarize_regime(records)
    data, picture = (store.directory / f"{NAME}.{end}" for end in ("json", "png"))
    text = json.dumps(as_json(summary), indent=1, allow_nan=False) + "\n"
    write_atomically(data, text.encode())
    return [data, save(regime_figure(summary), picture)]
