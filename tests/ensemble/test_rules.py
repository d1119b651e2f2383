"""Rules that a user registers for functions of all particles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from tests.common import assert_identical
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.testing import assert_close

import orderless as ol
from orderless.ensemble import rules

N, SHAPE = 3, (5, 4)


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rules, "_REGISTERED", {})
    yield


def outputs_and_gradients(network: type[nn.Module], **options: Any) -> list[Tensor]:
    particles = ol.Ensemble(network, N, seed=0, **options)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    y = particles(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), list(particles.parameters()))]


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def declining(n: int, dims: Any, *args: Any) -> Any:
    return NotImplemented


def test_a_rule_sees_all_particles_and_the_last_one_registered_is_asked_first():
    """After `NotImplemented` the next one, and in the end the ensemble computes as before."""
    asked = Mock(side_effect=declining)

    def by_einsum(n: int, dims: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        asked(n, dims, x.shape, weight.shape, bias.shape)
        return torch.einsum("bi,noi->bno", x, weight) + bias, 1

    expected = outputs_and_gradients(Linear)
    rules.register(F.linear, asked)
    assert_identical(outputs_and_gradients(Linear), expected)
    assert asked.call_count == 1
    rules.register(F.linear, by_einsum)
    assert_close(outputs_and_gradients(Linear), expected)
    assert asked.call_args.args == (N, (None, 0, 0), SHAPE, (N, 2, 4), (N, 2))
    rules.register(F.linear, Mock(side_effect=declining))
    assert_close(outputs_and_gradients(Linear), expected)
    assert asked.call_count == 3


def scaled(x: Tensor, scale: Tensor, power: int = 1) -> Tensor:
    """A function that an ensemble sees, as torch's own."""
    if has_torch_function_unary(x):
        return handle_torch_function(scaled, (x,), x, scale, power=power)
    return x * scale**power


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return scaled(x, self.scale, power=2)


def test_a_function_of_ones_own_has_a_rule_and_is_itself_without() -> None:
    expected = outputs_and_gradients(Scaling)

    def rule(n: int, dims: Any, x: Tensor, scale: Tensor, power: int) -> Any:
        assert dims == (None, 0) and power == 2
        return x.unsqueeze(2) * scale.T.pow(power), 2

    rules.register(scaled, rule)
    assert_close(outputs_and_gradients(Scaling), expected)


class Named(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, weight=self.layer.weight)


class OfOneSample(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(self.layer)(x)


@pytest.mark.parametrize("network", [Named, OfOneSample])
def test_calls_that_a_rule_could_not_understand_are_not_shown_to_it(
    network: type[nn.Module],
) -> None:
    particles = ol.Ensemble(network, N, seed=0)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    expected = particles(x)

    def rule(*args: Any, **options: Any) -> Any:
        raise AssertionError

    rules.register(F.linear, rule)
    assert torch.equal(particles(x), expected)
