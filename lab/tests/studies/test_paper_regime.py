"""The paper's regime: the scorings, and the claims of its published cells."""

from pathlib import Path

import torch

RESULTS = Path(__file__).parents[2] / "results" / "studies"


def test_scorings_of_two_particles(study):
    weights = torch.tensor([0.75, 0.25], dtype=torch.float64)
    outputs = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 2.0], [0.0, 4.0]]])
    scores = study.scores(weights, outputs, torch.tensor([0, 1]))
    assert scores == {
        "weighted logits": 1.0,  # .75 against .5, then .75 against 1
        "averaged logits": 0.5,
        "weighted accuracy": 0.5,
        "mean accuracy": 0.5,
        "one particle": 0.5,
    }
