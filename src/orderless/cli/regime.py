"""`orderless run regime`: the map of when weighting helps, from training to figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .options import as_typed

if TYPE_CHECKING:
    import torch

NAME = "when-weighting-helps"


def draw_map(
    preset: str,
    sizes: dict[str, int | None],
    changes: list[str],
    device: torch.device,
    root: str | None,
    out: Path | None,
    dry_run: bool,
) -> Iterator[str]:
    """Train what is missing, then write the map's JSON and figure; what there is to say.

    `sizes`: permutations, seeds and particles, None for the preset's.
    """
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
    orders, seeds, particles = (sizes[key] for key in ("permutations", "seeds", "particles"))
    regime = replace(
        regime,
        settings=regime.settings.with_text(changes),
        particles=regime.particles if particles is None else (particles,),
        permutations=regime.permutations if orders is None else orders,
        seeds=regime.seeds if seeds is None else seeds,
    )
    store = Store(out or Path("runs") / f"regime-{preset}")
    if dry_run:
        yield estimate(regime, store, root, device)
        return
    with Countdown() as progress:
        records = run_regime(
            regime,
            store,
            root=root,
            device=device,
            command=as_typed(),
            report=counting(progress.tell),
        )
    summary = summarize_regime(records)
    data, picture = (store.directory / f"{NAME}.{end}" for end in ("json", "png"))
    text = json.dumps(as_json(summary), indent=1, allow_nan=False) + "\n"
    write_atomically(data, text.encode())
    yield f"wrote {data}"
    yield f"wrote {save(regime_figure(summary), picture)}"
