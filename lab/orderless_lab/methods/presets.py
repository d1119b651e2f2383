"""The presets: settings by name, each with its default numbers of orders and seeds."""

from .policy_settings import PolicySettings
from .settings import Settings, SharedSettings

# for little data; the literature's strengths are for Adam and longer runs
SMALL = Settings(hidden=100, batch_size=32, ewc_strength=10.0, si_strength=100.0, rb_particles=2)

PRESETS: dict[str, Settings] = {
    # few large steps: all methods in three orders take a minute on two cores
    "demo": SMALL.changed(
        source="embedded", particles=8, lr=0.012, product_lr=0.2, perturbation=0.02, rb_features=512
    ),
    "table1": Settings(),
    "table1-low": Settings(lr=1e-4),
    "table1-high": Settings(lr=1e-1),  # high enough to forget
    "table1-adam": Settings(optimizer="adam"),  # as the literature's strengths assume
    "paper": Settings(
        normalize="symmetric", network="released", batch_size=8, lr=0.01, init="perturb"
    ),
    "strong": Settings(
        assign="random", optimizer="adam", iterations=2000, particles=1, fisher_samples=None
    ),
    "own": SMALL.changed(particles=20, lr=0.01, rb_features=1024),  # for a user's own data
}

# Default (permutations, seeds). "strong": van de Ven et al. draw the tasks' classes by the seed.
GRIDS = {name: (10, 3) for name in PRESETS}
GRIDS |= {"demo": (3, 1), "paper": (10, 1), "strong": (1, 20), "own": (5, 1)}

# Learning rates by preset and benchmark. table1: of {1e-4, 3e-4, 1e-3, 3e-3, 1e-2} the best for
# gradient descent on held-out data; table1-adam: van de Ven et al. (2022)
RATES = {
    ("table1", "splitmnist"): {"lr": 3e-3},
    ("table1", "splitcifar100"): {"lr": 1e-2},
    ("table1-adam", "splitmnist"): {"adam_lr": 1e-3},
    ("table1-adam", "splitcifar100"): {"adam_lr": 1e-4},
}

# The levels of each game in `gpu`, chosen before any method was measured: those on which plain PPO
# learns most (benchmarks/procgen_levels.py); on Fruitbot it must also end above 0 points.
LEVELS = {"starpilot": "8,9,16", "fruitbot": "5,18,19", "dodgeball": "15,17,18"}
# The twelve of `gpu-12`, by the same figures; two of Fruitbot's end at 0 points.
TWELVE = {
    "starpilot": "0,3,4,6,8,9,11,13,15,16,17,18",
    "fruitbot": "2,3,5,8,9,10,11,12,15,17,18,19",
    "dodgeball": "1,3,4,7,10,12,14,15,17,18,21,22",
}
# four times as many updates as with ProcGen's 256 steps, since the budget is short
GPU = PolicySettings(rollout=64, transitions=100_000, epochs=20, episodes=64)

POLICY_PRESETS = {
    "demo": PolicySettings(
        network="compact",
        particles=4,
        levels="0-1",
        steps_per_level=6144,
        envs=16,
        rollout=64,
        transitions=2048,
        batch_size=64,
        episodes=8,
        fisher_samples=256,
        precision="float32",
    ),
    "gpu": GPU,
    # enough levels to tell methods apart: their differences vary from level to level
    "gpu-12": GPU.changed(orders="random", seeds_by="order"),
    "paper": PolicySettings(
        particles=100,
        levels="0-14",
        orders="random",
        steps_per_level=2_000_000,
        transitions=100_000,
        epochs=20,
    ),
}

POLICY_GRIDS = {"demo": (2, 1), "gpu": (3, 1), "gpu-12": (3, 1), "paper": (10, 1)}


def find_preset(name: str, benchmark: str) -> Settings:
    """The settings of a preset, for a benchmark."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: choose from {', '.join(PRESETS)}")
    return PRESETS[name].changed(**RATES.get((name, benchmark), {}))


def find_policy_preset(name: str, game: str) -> PolicySettings:
    """The settings of a preset, for a game."""
    if name not in POLICY_PRESETS:
        raise ValueError(
            f"unknown preset {name!r} of the ProcGen benchmarks: choose from "
            f"{', '.join(POLICY_PRESETS)}"
        )
    chosen = {"gpu": LEVELS, "gpu-12": TWELVE}.get(name)
    preset = POLICY_PRESETS[name]
    return preset if chosen is None else preset.changed(levels=chosen[game])


def usual_grid(name: str, benchmark: str, scenario: str) -> tuple[SharedSettings, tuple[int, int]]:
    """A preset's settings, and its (permutations, seeds)."""
    if benchmark.startswith("procgen-"):
        return find_policy_preset(name, scenario), POLICY_GRIDS[name]
    return find_preset(name, benchmark), GRIDS[name]
