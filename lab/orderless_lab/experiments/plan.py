"""Make grids from the options of the command line."""

import math

from ..methods import METHODS
from ..methods.policy_settings import PolicySettings
from ..methods.presets import usual_grid
from ..rl.games import parse_levels
from .benchmarks import find_benchmark
from .grid import Grid


def plan(
    benchmark: str,
    *,
    preset: str | None = None,
    methods: str = "all",
    scenario: str | None = None,
    game: str | None = None,
    permutations: int | None = None,
    seeds: int | None = None,
    changes: list[str] | None = None,
) -> list[Grid]:
    """The grid of a benchmark; for the ProcGen benchmarks one per game.

    `game` is a game or "all"; None is the first game or scenario; `changes` are `key=value` texts.
    """
    found = find_benchmark(benchmark)
    if found.kind == "supervised":
        if game is not None:
            raise ValueError(f"--game belongs to the ProcGen benchmarks, not to {benchmark}")
        own = {text.partition("=")[0] for text in changes or ()}
        refuse(benchmark, levels="levels" in own, steps_per_level="steps_per_level" in own)
        names: tuple[str, ...] = (scenario or found.scenarios[0],)
        preset = preset or ("table1" if found.tasks is None else "own")
    else:
        if scenario is not None:
            raise ValueError(f"{benchmark} has games instead of a scenario: use --game")
        names = {None: found.scenarios[:1], "all": found.scenarios}.get(game, (str(game),))
        if names[0] not in found.scenarios:
            known = ", ".join(found.scenarios)
            raise ValueError(f"game must be one of {known}, or all, got {game!r}")
        preset = preset or "gpu"
    grids = []
    for name in names:
        usual, (orders, starts) = usual_grid(preset, benchmark, name)
        settings = usual.with_text(changes or [])
        if isinstance(settings, PolicySettings) and settings.orders == "cyclic":
            orders = min(orders, len(parse_levels(settings.levels)))
        if found.tasks is not None:
            orders = min(orders, math.factorial(found.tasks))
        orders = orders if permutations is None else permutations
        starts = starts if seeds is None else seeds
        chosen = tuple(dict.fromkeys(filter(None, map(str.strip, methods.split(",")))))
        if methods == "all":  # those whose settings are known
            values = settings.flat()
            every = (each for each in METHODS.values() if each.in_all and each.kind == found.kind)
            chosen = tuple(e.name for e in every if not e.needs or values[e.needs] is not None)
        grids.append(Grid(benchmark, name, preset, chosen, orders, starts, settings))
    return grids


def refuse(benchmark: str, **options: object) -> None:
    """Raise `ValueError` for options that a benchmark does not have, unless None or False."""
    for name, value in options.items():
        if value is not None and value is not False:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is not for {benchmark}: leave it out")


def check_launch(launcher: str, workers: int | None, checkpoint_every: float) -> None:
    """Raise `ValueError` for options without sense."""
    if launcher not in ("local", "ray"):
        raise ValueError(f"launcher must be local or ray, got {launcher!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1, got {workers}")
    if not checkpoint_every >= 0:  # nor NaN
        raise ValueError(f"--checkpoint-every must be at least 0, got {checkpoint_every}")
