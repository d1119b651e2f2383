"""The fused kernels against the formulas they stand for.

On a machine without a GPU Triton's interpreter runs the kernels (see conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from orderless.cuda import fused
from orderless.ensemble import random as keyed

pytest.importorskip("triton", reason="Triton is made for Linux only")


@pytest.fixture(autouse=True)
def on_the_gpu() -> Iterator[None]:
    """All tensors of these tests, where there is one."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu").to(torch.get_default_device())


def test_samples_may_lie_further_apart_than_31_bits() -> None:
    """Three rows that begin 2^30 numbers apart; a CPU has no memory behind the numbers between."""
    room = 2**31 + 2**10
    if torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 5 * room:
        pytest.skip("needs 10 GB of GPU memory")
    logits = random(2, 3, 4)
    labels = torch.tensor([3, 0, 1])
    apart = torch.empty(room).as_strided(logits.shape, (4, 2**30, 1)).copy_(logits)
    losses = fused.CrossEntropy.apply(apart, labels)
    assert_close(losses, fused.CrossEntropy.apply(logits, labels))


@pytest.mark.parametrize("shape", [(1,), (2, 3), (5, 7, 3), (1500,)])
def test_noise_is_that_of_the_keys(shape: tuple[int, ...]) -> None:
    keys = keyed.particle_keys(3, torch.tensor(2**33 + 1), torch.arange(4), stream=9)
    radius, moved = random(4, seed=1).abs(), random(4, *shape, seed=2)
    expected = moved + radius.view(-1, *[1] * len(shape)) * keyed.normal(keys, shape)
    fused.add_normal(moved, keys, radius)
    assert_close(moved, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ignored", [False, True])
def test_cross_entropy_and_its_derivatives(ignored: bool) -> None:
    logits = (10 * random(4, 9, 5)).requires_grad_()
    labels = torch.tensor([3, 1, 0, 4, 2, 2, 0, 1, 3])
    if ignored:
        labels[[0, 4]] = -100
    reference = logits.detach().clone().requires_grad_()
    expected = torch.stack([F.cross_entropy(each, labels) for each in reference])
    losses = fused.CrossEntropy.apply(logits, labels)
    assert_close(losses, expected)
    direction, other = random(4), random(4, 9, 5, seed=2)
    (plain,) = torch.autograd.grad(losses, logits, direction, retain_graph=True)
    (first,) = torch.autograd.grad(losses, logits, direction, create_graph=True)
    (wanted,) = torch.autograd.grad(expected, reference, direction, create_graph=True)
    assert_close(plain, wanted.detach())
    assert_close(first, wanted)
    (second,) = torch.autograd.grad(first, logits, other)
    assert_close(second, torch.autograd.grad(wanted, reference, other)[0])


def test_a_label_that_is_no_class_has_no_loss() -> None:
    losses = fused.CrossEntropy.apply(random(2, 3, 4), torch.tensor([0, 4, 1]))
    assert losses.isnan().all()


def state(n: int) -> list[Tensor]:
    """log-weights, log-evidence, alive, failed, steps."""
    log_weights = random(n).double().log_softmax(0)
    log_weights[0] = -torch.inf
    evidence = torch.tensor(0.5, dtype=torch.float64)
    return [
        log_weights.log_softmax(0),
        evidence,
        log_weights > -torch.inf,
        torch.tensor(False),
        torch.tensor(7),
    ]


def test_bayes_rule_in_one_kernel() -> None:
    log_weights, evidence, alive, failed, steps = before = state(5)
    gain = torch.tensor([1.0, -2e4, -2e4 - 3, torch.nan, -2e4 + 1], dtype=torch.float64)
    fused.reweigh(gain, alive.clone(), *(after := [t.clone() for t in before]))
    lives = after[2]
    assert lives.tolist() == [False, True, True, False, True]
    grown = (log_weights + gain)[lives]
    assert_close(after[0][lives], grown.log_softmax(0), rtol=0, atol=1e-11)
    assert after[0][~lives].isneginf().all()
    assert_close(after[1], evidence + grown.logsumexp(0), rtol=0, atol=1e-11)
    assert after[3].item() is False and after[4].item() == 8


def test_when_nobody_is_left_nothing_changes() -> None:
    before = state(5)
    gain = torch.full((5,), torch.nan, dtype=torch.float64)
    fused.reweigh(gain, before[2].clone(), *(after := [t.clone() for t in before]))
    assert after[3].item() is True
    for index in (0, 1, 2, 4):
        assert torch.equal(after[index], before[index])


@pytest.mark.parametrize("of_one", [False, True])
def test_one_number_may_stand_for_all(of_one: bool) -> None:
    before = state(5)
    number = torch.tensor([-3.0], dtype=torch.float64)
    found, wanted = ([t.clone() for t in before] for _ in range(2))
    fused.reweigh(number if of_one else number.expand(5), before[2].clone(), *found)
    fused.reweigh(number.repeat(5), before[2].clone(), *wanted)
    for got, want in zip(found, wanted, strict=True):
        assert torch.equal(got, want)
