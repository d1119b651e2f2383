"""Leave-one-out predictions against filters that really have not seen the sample."""

from __future__ import annotations

import math

import pytest
import torch
from tests.exact.blobs import blobs, ensemble
from torch import nn
from torch.nn.functional import cross_entropy

from orderless.exact import ExactHead
from orderless.exact.ridge import EVIDENCE, SHARPNESS
from orderless.exact.solution import held_out_of


@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.5]], ids=["alike", "weighted"])
def test_predictions_without_a_sample_are_those_of_a_filter_without_it(
    weights: list[float] | None,
) -> None:
    """Without standardisation, whose means and scales would know the sample that is left out."""
    x, y = blobs(60)
    x = (x * 64).round() / 64  # exact as float16
    mass = torch.tensor([1.0] if weights is None else weights).repeat(60)[:60]

    def fed(rows: torch.Tensor) -> ExactHead:
        options = {"standardize": False, "prior_precision": 2.5, "noise_variance": 0.3}
        rb = ExactHead(nn.Identity(), calibration=1, **options)  # type: ignore[arg-type]
        rb.update(x[rows], y[rows], sample_weight=mass[rows])
        return rb

    everyone = torch.arange(60)
    rb = fed(everyone)
    assert rb.sums is not None and rb.sums.kept is not None
    found = rb.heads[0].held_out
    assert found is not None and found.shape == (60, 10)
    features = rb.sums.kept.features[0].double() * rb.grid.limit
    for i in (0, 17, 58):
        mean, variance = fed(everyone[everyone != i]).predictive(x[i : i + 1])
        place = int((features == x[i]).all(1).nonzero())
        assert torch.allclose(found[place], (mean / variance.sqrt())[0], atol=1e-9)


def test_the_temperature_is_the_best_for_the_mixture_of_maps() -> None:
    """Against a grid of temperatures."""
    x, y = blobs(4000)
    rb = ExactHead(ensemble(width=60), weights="uniform", calibration=16)
    rb.update(x, y)
    assert rb.sums is not None and rb.sums.kept is not None
    truth = rb.sums.kept.columns.remainder(1 << 32)[:256]
    scores = torch.stack([head.held_out for head in rb.heads if head.held_out is not None])

    def loss(sharpness: float) -> float:
        mixture = (sharpness * scores).softmax(-1).mean(0)
        unusual = math.log(sharpness / SHARPNESS) / 0.4
        return cross_entropy(mixture.log(), truth, reduction="sum").item() + unusual**2 / 2

    grid = [math.exp(k / 50) for k in range(-50, 120)]
    assert rb.solution().sharpness == pytest.approx(min(grid, key=loss), rel=0.02)


def test_the_ridge_is_where_the_samples_and_the_evidence_are_the_most_probable() -> None:
    """Against a grid of ridges, each a filter of its own with that ridge."""
    x, y = blobs(800)

    def fed(**options: float) -> ExactHead:
        rb = ExactHead(ensemble(n=1), calibration=4, **options)  # type: ignore[arg-type]
        rb.update(x, y)
        return rb

    best = fed().heads[0]
    ridge, noise = best.prior_precision * best.noise_variance, best.noise_variance

    def score(factor: float) -> float:
        rb = fed(prior_precision=factor * ridge / noise, noise_variance=noise)
        held, scores = held_out_of(rb, rb.sums), rb.heads[0].held_out
        assert held is not None and scores is not None
        evidence = rb.heads[0].log_evidence / (799 * 9)
        return held.judge(scores.unsqueeze(0)).item() + EVIDENCE * evidence

    # with its own best noise another ridge would do a little better than here
    assert all(score(1.0) > score(factor) for factor in (0.3, 0.5, 0.7, 1.4, 2.0, 3.0))


def test_a_class_prior_weighs_the_samples_too() -> None:
    x, y = blobs(2000)
    keep = (y != 9) | (torch.arange(2000) % 50 == 9)
    rb = ExactHead(ensemble(), calibration=4, class_prior="uniform")
    rb.update(x[keep], y[keep])
    held = held_out_of(rb, rb.sums)
    assert held is not None
    rare, others = held.weights[held.labels == 9], held.weights[held.labels == 0]
    assert (rare == rare[0]).all() and rare[0] == pytest.approx(5 * others[0].item())
