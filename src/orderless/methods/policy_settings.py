"""Settings and presets of the ProcGen benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

from ..rl.games import parse_levels
from ..rl.settings import PPOSettings
from .settings import Settings


@dataclass(frozen=True)
class PolicySettings(Settings):
    """What the ProcGen benchmarks ask for besides."""

    levels: str = "0-2"
    """The levels that are the tasks: 0,1,2 or 0-14."""
    orders: str = "cyclic"
    """Orders of the levels: "cyclic" (each level is first, second, ... once) or "random"."""
    network: str = "impala"
    """"impala", or "compact" (for two CPU cores)."""
    particles: int = 8
    """N, for the methods that have particles."""
    optimizer: str = "adam"
    """"adam" or "sgd", for every method that takes gradients."""
    adam_lr: float = 5e-4
    """Adam's learning rate."""
    max_grad_norm: float = 0.5
    """Where each particle's gradient is clipped."""
    steps_per_level: int = 150_000
    """Lifelong: environment steps on each level, rounded up to whole rollouts."""
    envs: int = 64
    """Lifelong: copies of the game stepped together."""
    rollout: int = 256
    """Lifelong: steps in every copy between two updates."""
    minibatches: int = 8
    """Lifelong: into how many steps of the optimizer an epoch over the rollout is divided."""
    ppo_epochs: int = 3
    """Lifelong: how often an update goes through the rollout."""
    act: str = "mixture"
    """Lifelong: "mixture" draws every action from all particles, "episode" one particle each."""
    weigh_by: str = "loss"
    """Lifelong: what the weights see, "loss" (the paper's) or "policy"."""
    bins: int = 20
    """Lifelong: equal parts of a level's steps whose mean returns are averaged."""
    transitions: int = 20_000
    """Cloning: the expert's transitions on each level."""
    expert: str | None = None
    """Cloning: an expert's file, or a folder of GAME.safetensors; None: the package's own."""
    collect_seed: int = 0
    """Cloning: of the expert's actions."""
    batch_size: int = 256
    """Cloning: transitions per step."""
    episodes: int = 32
    """Cloning: episodes per level and scoring, of the particles by weight and of their mixture."""
    ewc_strength: float | None = 500.0
    """EWC's lambda."""
    fisher: str = "sampled"
    """Fisher information of the policy: "sampled", "exact" or "empirical"."""
    fisher_samples: int | None = 6400
    """Frames of a level's end that the Fisher information is computed on: 100 batches of 64."""
    precision: str = "bf16"
    """"float32", "tf32" or "bf16"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_levels(self.levels)
        if self.envs * self.rollout % self.minibatches:
            raise ValueError(
                f"minibatches={self.minibatches} must divide the rollout of {self.envs} copies x "
                f"{self.rollout} steps"
            )
        if self.batch_size > self.transitions:
            raise ValueError(
                f"transitions={self.transitions} must fill a batch of {self.batch_size}"
            )

    @classmethod
    def choices(cls) -> dict[str, tuple[str, ...]]:
        return {
            **super().choices(),
            "network": ("impala", "compact"),
            "orders": ("cyclic", "random"),
            "act": ("mixture", "episode"),
            "weigh_by": ("loss", "policy"),
        }

    def sequences(self, tasks: int, permutations: int) -> list[tuple[int, ...]]:
        if self.orders == "random":
            return super().sequences(tasks, permutations)
        if not 1 <= permutations <= tasks:
            raise ValueError(
                f"there are {tasks} cyclic orders of {tasks} levels, got permutations="
                f"{permutations}: use --set orders=random for others"
            )
        natural = tuple(range(tasks))
        return [natural[k:] + natural[:k] for k in range(permutations)]

    def ppo(self, weighted: bool) -> PPOSettings:
        """PPO's settings; only weighted particles have something to weigh by."""
        return PPOSettings(
            steps=self.rollout,
            epochs=self.ppo_epochs,
            minibatches=self.minibatches,
            act=self.act,
            weigh_by=self.weigh_by if weighted else "loss",
        )


# The levels of each game at `gpu`, named before any method is measured on them: those of which
# plain PPO learns most (benchmarks/procgen_levels.py), on Fruitbot if it ends above 0 points.
LEVELS = {"starpilot": "8,9,16", "fruitbot": "5,18,19", "dodgeball": "15,17,18"}

POLICY_PRESETS = {
    "demo": PolicySettings(
        network="compact",
        particles=4,
        levels="0-1",
        steps_per_level=8192,
        envs=16,
        rollout=64,
        transitions=2048,
        batch_size=64,
        episodes=8,
        fisher_samples=256,
        precision="float32",
    ),
    # four times as many updates as ProcGen's 256 steps would give: the budget is short
    "gpu": PolicySettings(rollout=64, episodes=64),
    "paper": PolicySettings(
        particles=100,
        levels="0-14",
        orders="random",
        steps_per_level=2_000_000,
        transitions=100_000,
        epochs=20,
    ),
}

POLICY_GRIDS = {"demo": (2, 1), "gpu": (3, 1), "paper": (10, 1)}


def find_policy_preset(name: str, game: str) -> PolicySettings:
    if name not in POLICY_PRESETS:
        raise ValueError(
            f"unknown preset {name!r} of the ProcGen benchmarks: choose from "
            f"{', '.join(POLICY_PRESETS)}"
        )
    preset = POLICY_PRESETS[name]
    return preset.changed(levels=LEVELS[game]) if name == "gpu" else preset
