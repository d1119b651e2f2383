"""Concatenated feature maps."""

import torch
from torch import Tensor, nn


class Concatenate(nn.Module):
    """phi(x) = [phi_1(x), phi_2(x), ...]: several feature maps as one.

    >>> from orderless.features import RandomConvolution
    >>> maps = Concatenate(*[RandomConvolution(3, 32, 400, kernel_size=k) for k in (4, 6)])
    >>> maps.out_features
    3200
    """

    def __init__(self, *maps: nn.Module) -> None:
        super().__init__()
        if not maps:
            raise ValueError("Concatenate needs at least one feature map, got none")
        self.maps = nn.ModuleList(maps)

    @property
    def exact(self) -> bool:
        """Whether the bits of every part are the same in any batch and on any device."""
        return all(getattr(part, "exact", False) for part in self.maps)

    @property
    def input_limit(self) -> float | None:
        """The smallest limit at which a part clips its inputs."""
        limits = [getattr(part, "input_limit", None) for part in self.maps]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def out_features(self) -> int:
        sizes: list[int] = [part.out_features for part in self.maps]  # type: ignore[misc]
        return sum(sizes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x).flatten(1) for part in self.maps], dim=1)
