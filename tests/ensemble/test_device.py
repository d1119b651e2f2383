"""A device that is not here is refused in one sentence wherever one can be given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import orderless as ol
from orderless.ensemble import find_device
from orderless_lab.suites import Scenario, Task

TASK = Task(*[torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])] * 2)


def linear() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


GIVEN: dict[str, Callable[[str], object]] = {
    "Ensemble": lambda device: ol.Ensemble(linear, 2, device=device),
    "from_modules": lambda device: ol.Ensemble.from_modules([linear()], device=device),
    "Ensemble.to": lambda device: ol.Ensemble(linear, 2).to(device),
    "filter.to": lambda device: ol.ExactHead(linear(), classes=2).to(device),
    "Scenario.to": lambda device: Scenario([TASK, TASK], kind="domain").to(device),
    "estimator": lambda device: ol.ExactClassifier(device=device).fit(
        np.random.default_rng(0).normal(size=(8, 2)), [0, 1] * 4
    ),
}


@pytest.mark.parametrize("where", GIVEN)
def test_cuda_without_a_card_is_one_sentence(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device here: use cpu, not cuda"):
        GIVEN[where]("cuda")


def test_what_is_no_device_and_a_card_too_many() -> None:
    with pytest.raises(ValueError, match="device must be cpu, cuda or cuda:NUMBER, got 'gpu'"):
        find_device("gpu")
    assert find_device("cpu") == torch.device("cpu")


def test_a_card_beyond_those_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="2 CUDA devices here, no cuda:2"):
        find_device("cuda:2")
