"""The product of task posteriors on a GPU: recorded steps, and the answers of the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.common import cross_entropy
from tests.product.tasks import convolutional, five_tasks

import orderless as ol


def learned(order: Sequence[int], device: str) -> ol.PosteriorProduct:
    particles = ol.Ensemble(convolutional, 3, seed=0, device=device)
    pf = ol.PosteriorProduct(particles, lambda p: torch.optim.SGD(p, lr=0.1))
    step = pf.compile(lambda x, y: cross_entropy(particles(x), y))
    for task in order:
        x, y = (part.to(device) for part in five_tasks()[task])
        for start in (0, 8, 16, 0, 8, 16):
            step(x[start : start + 8], y[start : start + 8])
        pf.end_task((x, y))
    return pf


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_it_answers_as_on_the_cpu_in_every_order(order: list[int]) -> None:
    x = five_tasks()[3][0]
    there = learned(order, "cuda").predict(x.cuda()).cpu()
    # float32 kernels round otherwise, and 18 steps carry that on
    torch.testing.assert_close(there, learned([0, 1, 2], "cpu").predict(x), rtol=1e-3, atol=1e-4)


def test_sums_made_there_and_here_can_be_added() -> None:
    x = five_tasks()[3][0]
    both = learned([0], "cpu") + learned([1], "cuda")
    assert both.tasks == 2 and both.particles.device.type == "cpu"
    expected = learned([0, 1], "cpu").predict(x)
    torch.testing.assert_close(both.predict(x), expected, rtol=1e-3, atol=1e-4)


def test_a_product_moves_with_its_sums_and_goes_on() -> None:
    x = five_tasks()[3][0]
    pf = learned([0], "cpu").to("cuda")
    task = tuple(part.cuda() for part in five_tasks()[1])
    pf.step(lambda: cross_entropy(pf.particles(task[0]), task[1]))
    pf.end_task(task)
    again = pf.to("cpu")
    assert again.tasks == 2 and again.predict(x).device.type == "cpu"
