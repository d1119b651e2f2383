"""The suites of ProcGen: levels of a game, cloned from an expert or played, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import nn

from orderless.errors import UserError

from ..methods.registry import CLONING, LIFELONG
from ..methods.settings import Count, Positive, RunSettings, Seed, Size, Value
from ..rl.experts import load_expert
from ..rl.games import GAMES, parse_levels
from ..rl.networks import find_network
from ..rl.settings import PPOSettings
from ..rl.tasks import ClonedTasks, ProcgenTasks, transitions_folder
from ..runs.procgen import CloningRunner, LifelongRunner
from .base import Outline, Preset, Suite
from .supervised import maker

FRAME = (3, 64, 64)
ACTIONS = 15

# The levels of each game in `gpu`, chosen before any method was measured: those on which plain PPO
# learns most (benchmarks/procgen_levels.py); on Fruitbot it must also end above 0 points.
LEVELS = {"starpilot": "8,9,16", "fruitbot": "5,18,19", "dodgeball": "15,17,18"}
# The twelve of `gpu-12`, by the same figures; two of Fruitbot's end at 0 points.
TWELVE = {
    "starpilot": "0,3,4,6,8,9,11,13,15,16,17,18",
    "fruitbot": "2,3,5,8,9,10,11,12,15,17,18,19",
    "dodgeball": "1,3,4,7,10,12,14,15,17,18,21,22",
}


class ProcgenSettings(RunSettings):
    """What both suites of ProcGen have in common."""

    held_out: ClassVar[dict[str, Value]] = {"first_seed": 100}  # no table reports it

    levels: str = "0-2"
    """The levels used as tasks: 0,1,2 or 0-14."""
    orders: Literal["cyclic", "random"] = "cyclic"
    """Orders of the levels: "cyclic" (every level has every position once) or "random"."""
    network: Literal["impala", "compact"] = "impala"
    """"impala", or "compact" (for two CPU cores)."""
    first_seed: Seed = 0
    """Seed of the networks and actions of the first seed; `tune` uses 100."""
    seeds_by: Literal["cell", "order"] = "cell"
    """"cell": all orders start from the same networks; "order": each from its own."""
    particles: Size = 8
    """N, for the methods that have particles."""
    optimizer: Literal["sgd", "adam"] = "adam"
    """"adam" or "sgd", for every method that takes gradients."""
    adam_lr: Positive = 5e-4
    """Adam's learning rate."""
    max_grad_norm: Positive = 0.5
    """Norm to which each particle's gradient is clipped."""
    precision: Literal["float32", "tf32", "bf16"] = "bf16"
    """"float32", "tf32" or "bf16"."""

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        parse_levels(self.levels)
        return self

    def seed_of(self, seed: int, order_index: int) -> int:
        own = 1000 * order_index if self.seeds_by == "order" else 0
        return self.first_seed + seed + own


class CloningSettings(ProcgenSettings):
    """Settings of behaviour cloning."""

    family: ClassVar[list[str]] = CLONING

    transitions: Count = 20_000
    """Transitions of the expert on each level."""
    expert: str | None = None
    """An expert's file, or a folder of GAME.safetensors; None: the one in the package."""
    collect_seed: Seed = 0
    """Seed of the expert's actions."""
    batch_size: Size = 256
    """Transitions per step."""
    episodes: Size = 32
    """Scored episodes per level, for the particles by weight and for their mixture."""

    @model_validator(mode="after")
    def _check_transitions(self) -> Self:
        if self.batch_size > self.transitions:
            raise ValueError(
                f"transitions={self.transitions} must fill a batch of {self.batch_size}"
            )
        return self


class LifelongSettings(ProcgenSettings):
    """Settings of lifelong learning."""

    family: ClassVar[list[str]] = LIFELONG

    steps_per_level: Count = 150_000
    """Environment steps on each level, rounded up to whole rollouts."""
    envs: Size = 64
    """Copies of the game stepped together."""
    rollout: Size = 256
    """Steps of every copy between two updates."""
    minibatches: Size = 8
    """Optimizer steps per epoch over the rollout."""
    ppo_epochs: Count = 3
    """Epochs over the rollout per update."""
    act: Literal["mixture", "episode"] = "mixture"
    """"mixture" draws actions from all particles, "episode" from one per episode."""
    weigh_by: Literal["loss", "policy"] = "loss"
    """What particles are weighted by, "loss" (the paper's) or "policy"."""
    bins: Size = 20
    """Equal parts of a level's steps; their mean returns are averaged."""

    @model_validator(mode="after")
    def _check_minibatches(self) -> Self:
        if self.steps_per_rollout % self.minibatches:
            raise ValueError(
                f"minibatches={self.minibatches} must divide the rollout of {self.envs} copies x "
                f"{self.rollout} steps"
            )
        return self

    @property
    def steps_per_rollout(self) -> int:
        return self.envs * self.rollout

    def ppo(self, weighted: bool) -> PPOSettings:
        """PPO's settings; `weigh_by` is for weighted particles only."""
        return PPOSettings(
            steps=self.rollout,
            epochs=self.ppo_epochs,
            minibatches=self.minibatches,
            act=self.act,
            weigh_by=self.weigh_by if weighted else "loss",
        )


@dataclass
class ProcgenSuite(Suite):
    """Levels of a game as tasks; the variants are the games."""

    unit: ClassVar[Literal["accuracy", "return"]] = "return"
    variant_name: ClassVar[str] = "game"
    # the settings of the presets `demo`, `gpu` and `paper` that are not shared
    sizes: ClassVar[dict[str, dict[str, Any]]]
    variants: tuple[str, ...] = GAMES

    def presets(self, variant: str) -> Mapping[str, Preset]:
        make = self.settings
        sizes = self.sizes
        small = {"network": "compact", "particles": 4, "levels": "0-1", "precision": "float32"}
        # enough levels to tell methods apart: their differences vary from level to level
        twelve = {"levels": TWELVE[variant], "orders": "random", "seeds_by": "order"}
        paper = {"particles": 100, "levels": "0-14", "orders": "random"}
        return {
            "gpu": Preset(make(levels=LEVELS[variant], **sizes["gpu"]), 3),
            "gpu-12": Preset(make(**twelve, **sizes["gpu"]), 3),
            "demo": Preset(make(**small, **sizes["demo"]), 2),
            "paper": Preset(make(**paper, **sizes["paper"]), 10),
        }

    def outline(self, variant: str, settings: Any) -> Outline:
        return Outline(len(parse_levels(settings.levels)), FRAME, ACTIONS)

    def orders(self, tasks: int, permutations: int, settings: Any) -> list[tuple[int, ...]]:
        if settings.orders == "random":
            return super().orders(tasks, permutations, settings)
        if not 1 <= permutations <= tasks:
            raise UserError(
                f"there are {tasks} cyclic orders of {tasks} levels, got permutations="
                f"{permutations}: use --set orders=random for others"
            )
        natural = tuple(range(tasks))
        return [natural[k:] + natural[:k] for k in range(permutations)]

    def most_orders(self, variant: str, settings: Any) -> int:
        if settings.orders == "cyclic":
            return self.outline(variant, settings).tasks
        return super().most_orders(variant, settings)


class CloningSuite(ProcgenSuite):
    settings: ClassVar[type[RunSettings]] = CloningSettings
    runner = CloningRunner
    scores: ClassVar[tuple[str, ...]] = ("particles", "probs")
    usual_method: ClassVar[str] = "bc"

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "demo": {"transitions": 2048, "batch_size": 64, "episodes": 8},
        "gpu": {"transitions": 100_000, "epochs": 20, "episodes": 64},
        "paper": {"transitions": 100_000, "epochs": 20},
    }

    def load(
        self, variant: str, settings: Any, seed: int, root: str | None, device: str
    ) -> ClonedTasks:
        path = None if settings.expert is None else Path(settings.expert)
        return ClonedTasks(
            variant,
            parse_levels(settings.levels),
            torch.device(device),
            load_expert(variant, path),
            transitions_folder(root),
            settings.transitions,
            settings.collect_seed,
        )

    def prepare(self, tasks: ClonedTasks, say: Callable[[str], None]) -> None:
        tasks.prepare(say)

    def network(self, shapes: Any, settings: Any) -> Callable[[], nn.Module]:
        return maker(find_network(settings.network), value=False)


class LifelongSuite(ProcgenSuite):
    settings: ClassVar[type[RunSettings]] = LifelongSettings
    runner = LifelongRunner
    usual_method: ClassVar[str] = "ppo"

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "demo": {"steps_per_level": 6144, "envs": 16, "rollout": 64, "fisher_samples": 256},
        # four times as many updates as with ProcGen's 256 steps, since the budget is short
        "gpu": {"rollout": 64},
        "paper": {"steps_per_level": 2_000_000},
    }

    def load(
        self, variant: str, settings: Any, seed: int, root: str | None, device: str
    ) -> ProcgenTasks:
        return ProcgenTasks(variant, parse_levels(settings.levels), torch.device(device))

    def network(self, shapes: Any, settings: Any) -> Callable[[], nn.Module]:
        return maker(find_network(settings.network), value=True)


PROCGEN_BC = CloningSuite(
    "procgen-bc",
    "ProcGen, behaviour cloning",
    "levels of a game, cloned from an expert one after another",
)
PROCGEN_LIFELONG = LifelongSuite(
    "procgen-lifelong",
    "ProcGen, lifelong learning",
    "levels of a game, played one after another",
)
