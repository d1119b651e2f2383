"""Settings and presets of the ProcGen benchmarks."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..rl.games import parse_levels
from ..rl.settings import PPOSettings
from .config import Count, Positive, Seed, Size
from .settings import SharedSettings


@dataclass(frozen=True, init=False)
class PolicySettings(SharedSettings):
    """Settings of the ProcGen benchmarks."""

    method_kinds: ClassVar[tuple[str, ...]] = ("cloning", "lifelong")
    held_out: ClassVar[str] = "first_seed=100"  # no table reports it

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
    steps_per_level: Count = 150_000
    """Lifelong: environment steps on each level, rounded up to whole rollouts."""
    envs: Size = 64
    """Lifelong: copies of the game stepped together."""
    rollout: Size = 256
    """Lifelong: steps of every copy between two updates."""
    minibatches: Size = 8
    """Lifelong: optimizer steps per epoch over the rollout."""
    ppo_epochs: Count = 3
    """Lifelong: epochs over the rollout per update."""
    act: Literal["mixture", "episode"] = "mixture"
    """Lifelong: "mixture" draws actions from all particles, "episode" from one per episode."""
    weigh_by: Literal["loss", "policy"] = "loss"
    """Lifelong: what particles are weighted by, "loss" (the paper's) or "policy"."""
    bins: Size = 20
    """Lifelong: equal parts of a level's steps; their mean returns are averaged."""
    transitions: Count = 20_000
    """Cloning: transitions of the expert on each level."""
    expert: str | None = None
    """Cloning: an expert's file, or a folder of GAME.safetensors; None: the one in the package."""
    collect_seed: Seed = 0
    """Cloning: seed of the expert's actions."""
    batch_size: Size = 256
    """Cloning: transitions per step."""
    episodes: Size = 32
    """Cloning: scored episodes per level, for the particles by weight and for their mixture."""
    precision: Literal["float32", "tf32", "bf16"] = "bf16"
    """"float32", "tf32" or "bf16"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_levels(self.levels)
        if self.steps_per_rollout % self.minibatches:
            raise ValueError(
                f"minibatches={self.minibatches} must divide the rollout of {self.envs} copies x "
                f"{self.rollout} steps"
            )
        if self.batch_size > self.transitions:
            raise ValueError(
                f"transitions={self.transitions} must fill a batch of {self.batch_size}"
            )

    @property
    def steps_per_rollout(self) -> int:
        return self.envs * self.rollout

    def seed_of(self, seed: int, order_index: int) -> int:
        own = 1000 * order_index if self.seeds_by == "order" else 0
        return self.first_seed + seed + own

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
        """PPO's settings; `weigh_by` is for weighted particles only."""
        return PPOSettings(
            steps=self.rollout,
            epochs=self.ppo_epochs,
            minibatches=self.minibatches,
            act=self.act,
            weigh_by=self.weigh_by if weighted else "loss",
        )
