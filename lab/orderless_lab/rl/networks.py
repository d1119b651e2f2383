"""Policy and value networks for images: IMPALA, and a small one for two CPU cores.

Both map observations `[B, 3, 64, 64]` to `(logits [B, A], values [B])`, or with `value=False` to
the logits alone, for behaviour cloning. uint8 observations are scaled to [0, 1], floats are used as
they are, and other integers reach the body unchanged, which may embed them.
The policy head is initialised orthogonally with gain 0.01, so that a new policy is nearly uniform,
the value head with gain 1, and all other layers by torch's defaults.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless.errors import UserError

from . import kernels  # noqa: F401  (ensembles of these networks use them)

ACTIONS = 15  # ProcGen's
NO_VALUES = "PPO needs a network that returns (logits, values): build it with value=True"


class ActorCritic(nn.Module):
    """A body to features `[B, features]`, a linear policy head and, with `value`, a value head."""

    def __init__(self, body: nn.Module, features: int, actions: int, value: bool) -> None:
        super().__init__()
        if actions < 2:
            raise ValueError(f"a policy needs at least 2 actions, got {actions}")
        self.body = body
        self.policy = nn.Linear(features, actions)
        self.value = nn.Linear(features, 1) if value else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the heads; the body's layers are initialised already."""
        nn.init.orthogonal_(self.policy.weight, 0.01)
        nn.init.zeros_(self.policy.bias)
        if self.value is not None:
            nn.init.orthogonal_(self.value.weight, 1.0)
            nn.init.zeros_(self.value.bias)

    def forward(self, observations: Tensor) -> Any:
        number = self.policy.weight.dtype
        if observations.dtype == torch.uint8:
            observations = observations.to(number) / 255
        elif observations.is_floating_point() or observations.dtype == torch.bool:
            observations = observations.to(number)
        features = self.body(observations)
        logits = self.policy(features)
        return logits if self.value is None else (logits, self.value(features).squeeze(-1))


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


class Impala(ActorCritic):
    """The large network of IMPALA (Espeholt et al. 2018), as ProcGen's authors use it.

    Per entry of `channels` a 3x3 convolution, 3x3 max-pooling with stride 2 and two residual
    blocks; then a dense layer of `features` units. 64x64 images only.
    """

    def __init__(
        self,
        channels: tuple[int, ...] = (16, 32, 32),
        features: int = 256,
        actions: int = ACTIONS,
        value: bool = True,
    ) -> None:
        layers: list[nn.Module] = []
        before = 3
        side = 64
        for count in channels:
            layers += [nn.Conv2d(before, count, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [Residual(count), Residual(count)]
            before = count
            side = (side + 1) // 2
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(before * side * side, features), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), features, actions, value)


class Compact(ActorCritic):
    """Two strided convolutions and one dense layer: about 3% of IMPALA's arithmetic."""

    def __init__(self, features: int = 64, actions: int = ACTIONS, value: bool = True) -> None:
        body = nn.Sequential(
            nn.Conv2d(3, 16, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 16, 4, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 6 * 6, features),
            nn.ReLU(),
        )
        super().__init__(body, features, actions, value)


NETWORKS: dict[str, Callable[..., ActorCritic]] = {"impala": Impala, "compact": Compact}


def find_network(name: str) -> Callable[..., ActorCritic]:
    if name not in NETWORKS:
        raise UserError(f"network must be one of {', '.join(NETWORKS)}, got {name!r}")
    return NETWORKS[name]


def policy_logits(outputs: Any) -> Tensor:
    """The logits of outputs with or without values beside them, in float32 or float64."""
    return _at_least_float32(outputs[0] if isinstance(outputs, tuple) else outputs)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def require_actions(logits: Tensor, actions: int) -> None:
    """Raise if the policy does not have as many actions as the environment."""
    if logits.shape[-1] != actions:
        raise ValueError(
            f"the networks know {logits.shape[-1]} actions, but the environment has {actions}"
        )


def policy_and_values(outputs: Any) -> tuple[Tensor, Tensor]:
    """Logits `[..., A]` and values `[...]`, in float32 or float64."""
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise TypeError(NO_VALUES)
    return policy_logits(outputs), _at_least_float32(outputs[1])
