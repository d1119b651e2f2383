"""Policy and value networks for images: IMPALA, and a small one for two CPU cores.

Both map observations `[B, 3, 64, 64]` to `(logits [B, A], values [B])`, or with `value=False` to
the logits alone, for behaviour cloning. uint8 is scaled to [0, 1] inside, floats are taken as they
are, and other whole numbers, which a body of one's own may embed, are left alone.
The policy head starts orthogonal with gain 0.01, so that a new policy is nearly uniform; the value
head orthogonal with gain 1. Everything else starts as torch starts it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..particles.kernels.residual import residual

ACTIONS = 15  # ProcGen's


class ActorCritic(nn.Module):
    """A body from images to features `[B, F]`, and two linear heads on it.

    `body` and `features` (its F) make the network; `actions` and `value` say which heads it has.
    """

    def __init__(self, body: nn.Module, features: int, actions: int, value: bool) -> None:
        super().__init__()
        if actions < 2:
            raise ValueError(f"a policy needs at least 2 actions, got {actions}")
        self.body = body
        self.policy = nn.Linear(features, actions)
        self.value = nn.Linear(features, 1) if value else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The heads' own start; the layers of the body have drawn theirs already."""
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
        return residual(x, self.first, self.second)


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
        before, side = 3, 64
        for count in channels:
            layers += [nn.Conv2d(before, count, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [Residual(count), Residual(count)]
            before, side = count, (side + 1) // 2
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(before * side * side, features), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), features, actions, value)


class Compact(ActorCritic):
    """Two strided convolutions and one dense layer: some 3% of IMPALA's arithmetic."""

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
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {name!r}")
    return NETWORKS[name]


def policy_logits(outputs: Any) -> Tensor:
    """The logits of a network's outputs, with or without values beside them, in float32 at least.

    Works on one network's outputs and on an ensemble's.
    """
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    return logits.float() if logits.dtype.itemsize < 4 else logits


def require_actions(logits: Tensor, actions: int) -> None:
    """As many as the environment has: with fewer some would never be tried."""
    if logits.shape[-1] != actions:
        raise ValueError(
            f"the networks know {logits.shape[-1]} actions, but the environment has {actions}"
        )


def policy_and_values(outputs: Any) -> tuple[Tensor, Tensor]:
    """Logits `[..., A]` and values `[...]`, in float32 at least."""
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise TypeError(
            "PPO needs a network that returns (logits, values), "
            f"got {type(outputs).__name__}: build it with value=True"
        )
    values = outputs[1]
    return policy_logits(outputs), values.float() if values.dtype.itemsize < 4 else values
