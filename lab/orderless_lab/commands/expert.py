"""`orderless expert`: train experts and collect their transitions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orderless.cli.options import PATH, option
from orderless.errors import UserError

from ..rl.games import known_game, parse_levels
from ..rl.settings import EXPERT_COPIES, rollouts_for
from . import options
from .options import find_device, problems_as_sentences

if TYPE_CHECKING:
    from ..rl import Expert

expert_app = typer.Typer(help="Train ProcGen experts, collect their data.", no_args_is_help=True)
FOLDER = Path("runs/experts")


@expert_app.command("train")
@problems_as_sentences("fewer --envs or a smaller --rollout")
def expert_train(
    game: options.OneGame,
    steps: Annotated[int, option("Environment steps in total.")] = 5_000_000,
    levels: Annotated[int, option("Train on levels 0 to LEVELS - 1.")] = 200,
    envs: Annotated[int, option("Copies of the game.")] = EXPERT_COPIES,
    rollout: Annotated[
        int | None, option("Steps per copy and update [256; fewer with over 64 copies].")
    ] = None,
    network: Annotated[str, option("impala, or compact (smaller)")] = "impala",
    seed: Annotated[int, option("Seed of network, actions and levels.")] = 0,
    episodes: Annotated[int, option("Evaluation episodes per copy (at most 64 copies).")] = 4,
    device: options.Device = "auto",
    out: Annotated[Path, option("Folder for the expert and its checkpoint.", **PATH)] = FOLDER,
    checkpoint_every: options.CheckpointEvery = 60.0,
) -> None:
    """Train an expert with PPO; the same command resumes it, also with more --steps.

    Example: orderless expert train starpilot --steps 5000000
    """
    from orderless.cli.progress import Countdown
    from orderless.io import INVALID_STATE

    from ..rl.experts import ExpertTraining, save_expert
    from ..runs.store import Store

    for name, value in (("steps", steps), ("episodes", episodes)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    path = out / f"{known_game(game)}.safetensors"
    store = Store(out / f"{game}.training")
    training = ExpertTraining(
        game,
        levels=levels,
        n_envs=envs,
        network=network,
        seed=seed,
        device=find_device(device),
        settings=rollouts_for(envs, rollout),
    )
    store.prepare()
    with store.claim(game) as ours, Countdown() as progress:
        if not ours:
            raise UserError(f"another command trains {game} in {out}: wait for it")
        try:
            state = store.load_checkpoint(game, lambda state: (state["ppo"]["steps"],))
            if state is not None:
                training.load_state_dict(state)
        except INVALID_STATE as error:
            message = f"{out} holds a checkpoint, but {error}: use another --out"
            raise UserError(message) from None
        before = training.steps
        saved = time.monotonic()

        def tell() -> None:
            nonlocal saved
            text = f"{game}, normalised return {training.recent_return:.3f}"
            progress.tell(training.steps, steps, text)
            if time.monotonic() - saved > checkpoint_every:
                store.save_checkpoint(game, training.state_dict())
                saved = time.monotonic()

        training.learn(steps, tell)
        if training.steps > before:
            # kept, so that a later command with more --steps can resume
            store.save_checkpoint(game, training.state_dict())
        expert = training.expert(episodes)
        save_expert(path, expert)
    typer.echo(f"{describe(expert)}\nwrote {path}")


def describe(expert: Expert) -> str:
    """Describe an expert and its returns."""
    facts = expert.facts
    lines = [
        f"{facts['game']}: {facts['network']}, {facts['steps']} steps ({facts['envs']} copies x "
        f"{facts['rollout']} in {facts['precision']}), seed {facts['seed']}; normalised returns, "
        "mean and standard error:"
    ]
    for name, text in (("training", f"levels 0-{facts['levels'] - 1}"), ("held_out", "new levels")):
        measured = facts["returns"][name]
        worth = {
            who: f"{each['mean']:.3f} +- {each['standard_error']:.3f}"
            for who, each in measured.items()
        }
        lines.append(f"  {text}: {worth['expert']}, at random {worth['random']}")
    return "\n".join(lines)


@expert_app.command("collect")
@problems_as_sentences("fewer --transitions")
def expert_collect(
    game: options.OneGame,
    levels: Annotated[str, option("Levels, as 0,1,2 or 0-14.")] = "0-14",
    transitions: Annotated[int, option("Transitions per level.")] = 100_000,
    expert: Annotated[
        Path | None, option("An expert's file, or a folder of them [the package's own].")
    ] = None,
    seed: Annotated[int, option("Seed of the expert's actions.")] = 0,
    device: options.Device = "auto",
    out: Annotated[
        Path | None, option("Folder for the transitions [where runs look for them].", **PATH)
    ] = None,
) -> None:
    """Collect an expert's transitions on each level; existing files are checked and kept.

    Example: orderless expert collect starpilot --levels 0-2 --transitions 20000
    """
    from orderless.cli.progress import Countdown

    from ..rl.experts import load_expert
    from ..rl.tasks import transitions_folder
    from ..rl.transitions import collect, read_transitions, transitions_path

    played = parse_levels(levels)
    where = find_device(device)
    trained = load_expert(game, expert)
    collected = {}
    with Countdown() as progress:
        for place, level in enumerate(played):
            path = transitions_path(out or transitions_folder(), trained, level, transitions, seed)

            def tell(done: int, place: int = place, level: int = level) -> None:
                total = len(played) * transitions
                progress.tell(place * transitions + done, total, f"{game} level {level}")

            if path.exists():
                collected[path] = read_transitions(path).facts
            else:
                collected[path] = collect(
                    path, trained, level, transitions, seed=seed, device=where, tell=tell
                )
    for path, facts in collected.items():
        mean = facts["mean_return"]
        worth = "no episode ended" if mean is None else f"normalised return {mean:.3f}"
        typer.echo(f"{path}: {worth} ({facts['episodes']} episodes)")
