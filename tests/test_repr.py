"""What objects say of themselves is one line, without tensors and addresses."""

from __future__ import annotations

import pytest
import torch
from tests.common import OPTIMIZERS, gradient_filter, mlp

import orderless as ol

X, Y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
SAID = {
    "WeightedParticleFilter(3 particles, 0 steps, ESS 3.0, device='cpu')": gradient_filter(),
    "PosteriorProduct(3 particles, 0 tasks)": ol.PosteriorProduct(
        ol.Ensemble(mlp, 3), OPTIMIZERS["sgd"]
    ),
    "EWC(strength=100, 0 tasks)": ol.EWC(ol.Ensemble(mlp, 3), strength=100.0),
    "Task('Monday', 4 training and 2 test samples of shape [2])": ol.Task(
        X, Y, X[:2], Y[:2], name="Monday"
    ),
}


@pytest.mark.parametrize("line", SAID)
def test_filters_consolidations_and_tasks_in_one_line(line):
    assert repr(SAID[line]) == line


def test_a_map_that_cannot_take_the_samples_is_a_sentence() -> None:
    rb = ol.ExactHead(torch.nn.Linear(6, 4), classes=2)
    x = torch.randn(10, 6)
    rb.update(x, torch.arange(10) % 2)
    with pytest.raises(ValueError, match=r"samples of shape \[\].*a single sample is x\[None\]"):
        rb.predict(x[0])
