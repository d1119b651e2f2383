"""Reinforcement learning with particles: ProcGen levels, PPO, behaviour cloning."""

from typing import TYPE_CHECKING

from ..lazy import on_first_use

if TYPE_CHECKING:
    from .cloning import BehaviourCloning, Score, cloning_loss, play
    from .environment import VectorEnvironment
    from .experts import Expert, load_expert
    from .games import GAMES, RETURN_RANGES
    from .gymnasium_levels import GymnasiumLevels
    from .mixture import Decision, MixturePolicy, mixture_log_probabilities
    from .networks import ActorCritic, Compact, Impala, policy_and_values, policy_logits
    from .ppo import PPO, Episode, LineageBootstrapFilter, UpdateInfo
    from .procgen import ProcgenLevels, normalized_return
    from .rollout import RewardScaler, Rollout, advantages
    from .settings import PPOSettings
    from .surrogate import Surrogate
    from .transitions import Transitions, collect, read_transitions

__all__ = [
    "GAMES", "PPO", "RETURN_RANGES", "ActorCritic", "BehaviourCloning", "Compact", "Decision",
    "Episode", "Expert", "GymnasiumLevels", "Impala", "LineageBootstrapFilter", "MixturePolicy",
    "PPOSettings", "ProcgenLevels", "RewardScaler", "Rollout", "Score",
    "Surrogate", "Transitions", "UpdateInfo", "VectorEnvironment", "advantages", "cloning_loss",
    "collect", "load_expert", "mixture_log_probabilities", "normalized_return", "play",
    "policy_and_values", "policy_logits", "read_transitions",
]  # fmt: skip

__getattr__, __dir__ = on_first_use(__name__)
