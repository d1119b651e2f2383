"""Experts: for each game a network trained by PPO on many levels, with its measured returns.

An expert is one file of `ol.save`: parameters in bfloat16 and, in JSON, the game, network, steps,
seed, and normalised returns on training levels and on held-out levels, each with those of a random
policy. The package's own experts are in `expert_files`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from orderless import io as storage
from orderless.ensemble import Ensemble, find_device
from orderless.errors import UserError
from orderless.filters import GradientDescent

from .cloning import play
from .environment import Saved
from .games import known_game
from .networks import ActorCritic, Compact, find_network
from .ppo import PPO
from .procgen import ProcgenLevels
from .settings import EXPERT_COPIES, PPOSettings, rollouts_for

FOLDER = Path(__file__).parent / "expert_files"
HELD_OUT = 1000  # levels after the training levels, for measuring
PLAYING = 64  # copies for measuring returns: those with short episodes wait for the others


@dataclass(frozen=True)
class Expert:
    """A trained policy with a value head, and `facts` about its training and returns."""

    network: ActorCritic
    facts: Saved

    @property
    def game(self) -> str:
        return self.facts["game"]

    @property
    def digest(self) -> str:
        """A hash of the parameters, which identifies the transitions collected from them."""
        return storage.digest(_rounded(self.network))[:12]


def _rounded(network: ActorCritic) -> dict[str, Tensor]:
    return {name: tensor.bfloat16().cpu() for name, tensor in network.state_dict().items()}


def _in_float32(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.float() for name, tensor in parameters.items()}


def save_expert(path: Path, expert: Expert) -> None:
    """Write an expert's file atomically."""
    storage.save(path, {"facts": expert.facts, "parameters": _rounded(expert.network)})


def load_expert(game: str, path: Path | None = None) -> Expert:
    """Load the expert of `game` from `path`, a file or a folder; or the package's own."""
    known_game(game)
    path = path or FOLDER
    path = path / f"{game}.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise UserError(
            f"there is no expert for {game} at {path}: train one with `orderless expert train "
            f"{game}` and name its file: --expert FILE, or for a run --set expert=FILE"
        )
    content = storage.load(path)
    try:
        facts = content["facts"]
        network = find_network(facts["network"])()
        network.load_state_dict(_in_float32(content["parameters"]))
    except storage.INVALID_STATE as error:
        raise UserError(f"{path} is not an expert for {game} ({error})") from None
    if facts["game"] != game:
        raise UserError(f"{path} is not an expert for {game} but for {facts['game']}")
    return Expert(network, facts)


class ExpertTraining:
    """PPO of one network on `levels` levels of a game, from level 0 on.

    By default an update has as many samples as ProcGen's 64 copies of 256 steps: more copies make
    fewer steps each. `learn` trains until `steps` environment steps are done. `state_dict` between
    two rounds holds everything but the running episodes: after a resume all copies start new ones.
    """

    def __init__(
        self,
        game: str,
        *,
        levels: int = 200,
        n_envs: int = EXPERT_COPIES,
        network: str = "impala",
        seed: int = 0,
        device: torch.device | str = "cpu",
        settings: PPOSettings | None = None,
    ) -> None:
        settings = settings or rollouts_for(n_envs)
        self.device = find_device(device)
        precision = "bf16" if self.device.type == "cuda" else "float32"
        build = find_network(network)
        particles = Ensemble(build, 1, seed=seed, precision=precision, device=self.device)
        optimizer = torch.optim.Adam(particles.parameters(), lr=5e-4, eps=1e-5)
        filter = GradientDescent(particles, optimizer, max_grad_norm=0.5)
        env = ProcgenLevels(game, n_envs, 0, num_levels=levels, seed=seed)
        self.ppo = PPO(filter, env, settings, seed=seed)
        self.recent: deque[float] = deque(maxlen=256)  # normalised returns of the last episodes
        self.identity: Saved = {
            "game": game,
            "levels": levels,
            "network": network,
            "seed": seed,
            "envs": n_envs,
            "rollout": settings.steps,
            "precision": precision,
        }

    @property
    def steps(self) -> int:
        return self.ppo.steps

    @property
    def recent_return(self) -> float:
        return sum(self.recent) / len(self.recent) if self.recent else float("nan")

    def learn(self, steps: int, tell: Callable[[], None] = lambda: None) -> None:
        """Train until `steps` are done in all; call `tell()` after every round."""
        while self.steps < steps:
            self.ppo.learn(1)
            values = [episode.value for episode in self.ppo.take_episodes()]
            self.recent.extend(self.ppo.env.normalize(values).tolist())
            tell()

    def expert(self, episodes: int = 4) -> Expert:
        """The present network, rounded as in its file, with its returns measured."""
        network = self.ppo.particles[0].cpu()
        assert isinstance(network, ActorCritic)
        network.load_state_dict(_in_float32(_rounded(network)))
        identity = self.identity
        levels = identity["levels"]
        copies = min(identity["envs"], PLAYING)
        returns = {}
        for name, first, count in (("training", 0, levels), ("held_out", levels, HELD_OUT)):
            place = identity["game"], first, count, copies, episodes, identity["seed"], self.device
            returns[name] = {
                "expert": mean_return(network, *place),
                "random": mean_return(random_policy(), *place),
            }
        return Expert(network, {**identity, "steps": self.steps, "returns": returns})

    def state_dict(self) -> dict[str, object]:
        return {
            "identity": self.identity,
            "ppo": self.ppo.state_dict(),
            "recent": list(self.recent),
        }

    def load_state_dict(self, state: Saved) -> None:
        """Resume from a state of this very training."""
        for name, value in self.identity.items():
            other = state["identity"][name]
            if other != value:
                raise UserError(f"this training has {name}={other}, not {value}")
        self.ppo.load_state_dict(state["ppo"])
        self.recent.extend(state["recent"])


def random_policy() -> ActorCritic:
    """A small network with a uniform policy."""
    network = Compact()
    torch.nn.init.zeros_(network.policy.weight)
    return network


def policy_of(network: ActorCritic, device: torch.device | str = "cpu") -> GradientDescent:
    """One network as a filter that is not trained, to act with."""
    particles = Ensemble.from_modules([network], device=device)
    return GradientDescent(particles, torch.optim.SGD(particles.parameters(), lr=0.0))


def mean_return(
    network: ActorCritic,
    game: str,
    level: int,
    num_levels: int,
    n_envs: int,
    episodes: int,
    seed: int,
    device: torch.device | str,
) -> dict[str, float]:
    """Mean normalised return over `n_envs` x `episodes` episodes, standard error and count."""
    env = ProcgenLevels(game, n_envs, level, num_levels=num_levels, seed=seed + 1)
    try:
        returns = play(policy_of(network, device), env, episodes=episodes, seed=seed).episodes
    finally:
        env.close()
    error = float(returns.std() / max(1, returns.size - 1) ** 0.5)
    return {"mean": float(returns.mean()), "standard_error": error, "episodes": returns.size}
