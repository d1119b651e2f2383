"""`orderless expert`: training experts and collecting what they do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..rl.games import known_game, parse_levels
from ..rl.settings import EXPERT_COPIES, PPOSettings, rollouts_for
from . import options
from .errors import problems_as_sentences
from .options import find_device

if TYPE_CHECKING:
    import torch

    from ..rl import Expert

expert_app = typer.Typer(help="Experts for ProcGen: train, collect.", no_args_is_help=True)


def train_expert(
    game: str,
    *,
    steps: int,
    levels: int = 200,
    envs: int = EXPERT_COPIES,
    network: str = "impala",
    seed: int = 0,
    device: torch.device | str = "cpu",
    out: Path,
    checkpoint_every: float = 60.0,
    episodes: int = 4,
    settings: PPOSettings | None = None,
) -> tuple[Path, Expert]:
    """Train until `steps` are done in all, from the checkpoint in `out` where there is one."""
    from ..experiments.progress import Countdown
    from ..experiments.store import Store
    from ..rl.experts import ExpertTraining, save_expert
    from ..storage import INVALID_STATE

    for name, value in (("steps", steps), ("episodes", episodes)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    path, store = out / f"{known_game(game)}.safetensors", Store(out / f"{game}.training")
    store.prepare("checkpoints")
    with store.lock(), Countdown() as progress:
        training = ExpertTraining(
            game,
            levels=levels,
            n_envs=envs,
            network=network,
            seed=seed,
            device=device,
            settings=settings,
        )
        try:
            state = store.load_checkpoint(game, lambda state: (state["ppo"]["steps"],))
            if state is not None:
                training.load_state_dict(state)
        except INVALID_STATE as error:
            message = f"{out} holds a checkpoint, but {error}: use another --out"
            raise ValueError(message) from None
        before, saved = training.steps, time.monotonic()

        def tell() -> None:
            nonlocal saved
            text = f"{game}, normalised return {training.recent_return:.3f}"
            progress.tell(training.steps, steps, text)
            if time.monotonic() - saved > checkpoint_every:
                store.save_checkpoint(game, training.state_dict())
                saved = time.monotonic()

        training.learn(steps, tell)
        if training.steps > before:
            # kept: a later run with more --steps goes on from here
            store.save_checkpoint(game, training.state_dict())
        expert = training.expert(episodes)
        save_expert(path, expert)
    return path, expert


def describe(expert: Expert) -> str:
    """What an expert is worth, for people."""
    from ..rl.experts import shape_of

    facts = expert.facts
    parts = [*facts.get("earlier", ()), {**facts, "until": facts["steps"]}]
    copies = ", then ".join(
        "{envs} copies x {rollout} in {precision} to step {until}".format_map(
            {**part, **shape_of(part)}
        )
        for part in parts
    )
    lines = [
        f"{facts['game']}: {facts['network']}, {facts['steps']} steps ({copies}), seed "
        f"{facts['seed']}; normalised returns, mean and standard error:"
    ]
    for name, text in (("training", f"levels 0-{facts['levels'] - 1}"), ("held_out", "new levels")):
        measured = facts["returns"][name]
        expert_text, random_text = (
            f"{measured[who]['mean']:.3f} +- {measured[who]['standard_error']:.3f}"
            for who in ("expert", "random")
        )
        lines.append(f"  {text}: {expert_text}, at random {random_text}")
    return "\n".join(lines)


def collect_levels(
    game: str,
    levels: tuple[int, ...],
    transitions: int,
    *,
    expert: Path | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    out: Path,
) -> list[tuple[Path, dict[str, Any]]]:
    """A file for every level that has none yet; returns all of them with their facts."""
    from ..experiments.progress import Countdown
    from ..rl.experts import load_expert
    from ..rl.transitions import collect, read_transitions, transitions_path

    trained = load_expert(game, expert)
    paths = [transitions_path(out, trained, level, transitions, seed) for level in levels]
    facts = []
    with Countdown() as progress:
        for place, (level, path) in enumerate(zip(levels, paths, strict=True)):

            def tell(done: int, place: int = place, level: int = level) -> None:
                total = len(levels) * transitions
                progress.tell(place * transitions + done, total, f"{game} level {level}")

            if path.exists():
                facts.append(read_transitions(path).facts)
            else:
                options: dict[str, Any] = {"seed": seed, "device": device, "tell": tell}
                facts.append(collect(path, trained, level, transitions, **options))
    return list(zip(paths, facts, strict=True))


# ---------------------------------------------------------------------- commands


@expert_app.command("train")
@problems_as_sentences(less_memory="fewer --envs or a smaller --rollout")
def expert_train(
    game: options.OneGame,
    steps: Annotated[int, typer.Option(help="Environment steps in all.")] = 5_000_000,
    levels: Annotated[int, typer.Option(help="Train on so many levels, from level 0 on.")] = 200,
    envs: Annotated[
        int, typer.Option(help="Copies of the game; may change on resume.")
    ] = EXPERT_COPIES,
    rollout: Annotated[
        int | None,
        typer.Option(
            help="Steps of a copy for an update; may change on resume.",
            show_default="256, with more than 64 copies fewer",
        ),
    ] = None,
    network: Annotated[str, typer.Option(help="impala, or compact (a small one)")] = "impala",
    seed: Annotated[int, typer.Option(help="Of network, actions and levels.")] = 0,
    episodes: Annotated[
        int, typer.Option(help="Episodes of each copy (of at most 64) when measured.")
    ] = 4,
    device: options.Device = "auto",
    out: Annotated[
        Path, typer.Option(help="Folder of the expert and its checkpoint.", **options.PATH)
    ] = Path("runs/experts"),
    checkpoint_every: options.CheckpointEvery = 60.0,
) -> None:
    """Train an expert by PPO; the same command goes on where it stopped, also with more --steps.

    Example: orderless expert train starpilot --steps 5000000
    """
    path, expert = train_expert(
        game,
        steps=steps,
        levels=levels,
        envs=envs,
        network=network,
        seed=seed,
        device=find_device(device),
        out=out,
        checkpoint_every=checkpoint_every,
        episodes=episodes,
        settings=rollouts_for(envs, rollout),
    )
    typer.echo(describe(expert))
    typer.echo(f"wrote {path}")


@expert_app.command("collect")
@problems_as_sentences()
def expert_collect(
    game: options.OneGame,
    levels: Annotated[str, typer.Option(help="0,1,2 or 0-14")] = "0-14",
    transitions: Annotated[int, typer.Option(help="So many from each level.")] = 100_000,
    expert: Annotated[
        Path | None,
        typer.Option(help="An expert's file, or a folder of them (else the package's own)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the expert's actions.")] = 0,
    device: options.Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the transitions (else where runs look for them).", **options.PATH
        ),
    ] = None,
) -> None:
    """Write what an expert sees and does on each level; files that are there are checked and kept.

    Example: orderless expert collect starpilot --levels 0-2 --transitions 20000
    """
    from ..rl.tasks import transitions_folder

    collected = collect_levels(
        game,
        parse_levels(levels),
        transitions,
        expert=expert,
        seed=seed,
        device=find_device(device),
        out=out or transitions_folder(),
    )
    for path, facts in collected:
        mean = facts["mean_return"]
        worth = "no episode ended" if mean is None else f"normalised return {mean:.3f}"
        typer.echo(f"{path}: {worth} ({facts['episodes']} episodes)")
