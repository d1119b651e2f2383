"""What objects say of themselves is one line, without tensors and addresses."""

from __future__ import annotations

import pytest
import torch

import orderless as ol


def particles() -> ol.Ensemble:
    return ol.Ensemble(lambda: torch.nn.Linear(2, 2), n=3)


def descent(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def weighted() -> ol.WeightedParticleFilter:
    ensemble = particles()
    return ol.WeightedParticleFilter(ensemble, descent(list(ensemble.parameters())))


def test_filters_consolidations_and_tasks_in_one_line() -> None:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    said = {
        repr(weighted()): "WeightedParticleFilter(3 particles, 0 steps, ESS 3.0, device='cpu')",
        repr(ol.PosteriorProduct(particles(), descent)): "PosteriorProduct(3 particles, 0 tasks)",
        repr(ol.EWC(particles(), strength=100.0)): "EWC(strength=100, 0 tasks)",
        repr(ol.Task(x, y, x[:2], y[:2], name="Monday")): (
            "Task('Monday', 4 training and 2 test samples of shape [2])"
        ),
    }
    for found, expected in said.items():
        assert found == expected


def test_a_map_that_cannot_take_the_samples_is_a_sentence() -> None:
    rb = ol.ExactHead(torch.nn.Linear(6, 4), classes=2)
    x = torch.randn(10, 6)
    rb.update(x, torch.arange(10) % 2)
    with pytest.raises(ValueError, match=r"samples of shape \[\].*a single sample is x\[None\]"):
        rb.predict(x[0])
