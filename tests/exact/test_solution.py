"""Posteriors, evidence, ridge and temperature against closed forms, scikit-learn and grids."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge, Ridge
from tests.common import normal
from tests.exact.toys import X, Y, blobs, fed, line, maps, regression
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import orderless as ol
from orderless.exact.ridge import (
    EVIDENCE,
    SHARPNESS,
    NormalEquations,
    maximum,
    minimise,
    safe_cholesky,
    score,
    solve_head,
)
from orderless.exact.solution import equations_of, ratios_of, solve

ALPHA = 2.5
NOISE = 0.3
KNOWN: dict[str, Any] = {"prior_precision": ALPHA, "noise_variance": NOISE}


def ridge_at(new: Tensor, x: Tensor, y: Tensor, mass: Tensor, ridge: float) -> tuple:
    """A ridge with a free intercept: what it says of one sample, and the variance over the noise's
    that this has."""
    w = mass.unsqueeze(1)
    mean, target_mean = (w * x).sum(0) / w.sum(), (w * y).sum(0) / w.sum()
    z = x - mean
    matrix = z.T @ (w * z) + ridge * torch.eye(x.shape[1], dtype=torch.float64)
    own = torch.linalg.solve(matrix, new - mean)
    output = own @ z.T @ (w * (y - target_mean)) + target_mean
    return output, 1.0 + 1.0 / w.sum() + own @ (new - mean)


def contrasts(count: int) -> np.ndarray:
    """Orthonormal columns `[count, count - 1]` that sum to 0: what data say if the mean is free."""
    return np.linalg.qr(np.eye(count) - 1 / count)[0][:, : count - 1]


# ---------------------------------------------------------------------- the posterior


@pytest.mark.parametrize("classes", [False, True])
def test_evidence_is_the_gaussian_marginal_density_of_contrasts(classes: bool) -> None:
    """Over samples, because the intercept is free, and over classes, because they sum to 1."""
    x, y = regression(24)
    x[:, 3] = 1.0  # a feature that never varies
    labels = torch.arange(24) % 3
    head = ol.ExactHead("linear", targets="classes" if classes else "values", **KNOWN)
    values = torch.stack([y, y.square() / 16], 1)
    head.update(x, labels if classes else values)
    targets = np.eye(3)[labels] @ contrasts(3) if classes else (values * 4096).round() / 4096
    features = x.numpy() / np.sqrt(x.numpy().var(0).mean())  # one scale for all
    rows = contrasts(24).T @ features
    covariance = NOISE * np.eye(23) + rows @ rows.T / ALPHA
    observed = (contrasts(24).T @ np.asarray(targets)).T
    expected = multivariate_normal.logpdf(observed, np.zeros(23), covariance).sum()
    assert head.particle_log_evidence.item() == pytest.approx(expected, rel=1e-10)


def test_maximised_evidence_agrees_with_bayesian_ridge() -> None:
    x, y = regression(200, 12)
    flat = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0}
    oracle = BayesianRidge(fit_intercept=False, max_iter=5000, tol=1e-12, **flat)
    scale = np.sqrt(x.numpy().var(0).mean())
    oracle.fit(contrasts(200).T @ x.numpy() / scale, contrasts(200).T @ y.numpy())
    head = line()
    head.update(x, y)
    (posterior,) = head.heads
    assert posterior.noise_variance == pytest.approx(1 / oracle.alpha_, rel=1e-4)
    assert posterior.prior_precision == pytest.approx(oracle.lambda_, rel=1e-4)
    mean = oracle.predict((x[:5] - x.mean(0)).numpy() / scale) + y.mean().item()
    assert head.predictive(x[:5]).mean[:, 0].numpy() == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("options", [{}, KNOWN], ids=["chosen", "fixed"])
def test_all_features_have_one_scale(options: dict[str, Any]) -> None:
    """Against scikit-learn's ridge on centred features that one number makes of unit size; sizes of
    the features differ, one never varies and does so later."""
    x, y = regression(200, 12)
    x = x * torch.logspace(0.5, -1.0, 12, dtype=torch.float64)
    x = (x * 4096).round() / 4096 + 0.5  # on the grid
    x[:, 7] = 1.0
    new = x[:5] + 0.25
    head = line(**options)
    head.update(x[:20], y[:20])
    head.update(x[20:], y[20:])
    (posterior,) = head.heads
    scale = np.sqrt(x.numpy().var(0).mean())
    ridge = posterior.prior_precision * posterior.noise_variance
    if options:
        assert (posterior.prior_precision, posterior.noise_variance) == (ALPHA, NOISE)
    oracle = Ridge(alpha=ridge).fit(x.numpy() / scale, y.numpy())
    predicted = head.predictive(new)
    assert predicted.mean[:, 0].numpy() == pytest.approx(oracle.predict(new.numpy() / scale))
    alone = [
        ridge_at(row / scale, x / scale, y.unsqueeze(1), torch.ones_like(y), ridge) for row in new
    ]
    variance = posterior.noise_variance * torch.stack([factor for _, factor in alone])
    assert_close(predicted.variance[:, 0], variance, rtol=1e-6, atol=1e-12)
    far = head.predictive(new + 7.0).variance
    assert (far > 2 * predicted.variance).all()


# ---------------------------------------------------------------------- the ridge


@pytest.mark.parametrize("peak", [3.3, -9.0, 9.0])
def test_the_search_finds_a_maximum_inside_and_at_a_bound(peak: float) -> None:
    def bump(points: Tensor) -> Tensor:
        return -torch.cosh(points - peak)

    assert maximum(bump, -9.0, 9.0, tolerance=0.01) == pytest.approx(peak, abs=1e-5)
    assert maximum(lambda points: peak * points, -9.0, 9.0, 0.01) == pytest.approx(
        math.copysign(9.0, peak), abs=0.02
    )


@pytest.mark.parametrize("classes", [False, True])
def test_fewer_features_tell_the_ridge_of_all(classes: bool) -> None:
    """Against the best of a grid of ridges of the whole model: no evidence is lost."""
    x, y = regression(900)
    targets = nn.functional.one_hot((y > 0).long()).double() if classes else y.unsqueeze(1)
    weight = normal(8, 700, dtype=torch.float64)
    features = torch.cat([(x @ weight).relu(), torch.ones(900, 1, dtype=torch.float64)], dim=1)
    equations = NormalEquations.of(
        features.T @ features,
        targets.T @ features,
        targets.square().sum(0),
        classes=classes,
    )
    posterior = solve_head(equations)
    ridge = posterior.prior_precision * posterior.noise_variance * equations.variance
    ridges = ridge * torch.logspace(-2, 2, 41, dtype=torch.float64)
    evidence = score(equations, minimise(equations, ridges)).log_evidence
    assert 0.5 * ridge < ridges[evidence.argmax()] < 2.0 * ridge
    assert evidence.max().item() == pytest.approx(posterior.log_evidence, abs=5.0)


def test_more_ridge_for_the_one_that_needs_it() -> None:
    rows = normal(5, 9, dtype=torch.float64)
    identity = torch.eye(9, dtype=torch.float64)
    good = rows.T @ rows + identity
    singular = rows.T @ rows - 1e-13 * identity
    first, second = safe_cholesky(torch.stack([good, singular]))
    assert torch.equal(first, torch.linalg.cholesky(good))
    assert torch.allclose(second @ second.T, singular, atol=1e-10)
    with pytest.raises(FloatingPointError, match="never been learned"):
        safe_cholesky(-identity.unsqueeze(0))


# ---------------------------------------------------------------------- samples held out


@pytest.mark.parametrize("weights", [[1.0], [0.5, 1.0, 2.5]], ids=["alike", "weighted"])
def test_predictions_without_a_sample_are_those_of_a_ridge_without_it(weights: list[float]) -> None:
    """With the same lambda, which is in units of the features of all samples."""
    x, y = blobs(60)
    x = ((x * 64).round() / 64).double()  # exact as float16
    mass = torch.tensor(weights, dtype=torch.float64).repeat(60)[:60]
    head = ol.ExactHead("linear", calibration=1, **KNOWN)
    head.update(x, y, sample_weight=mass)
    scores = head.heads[0].held_out
    ridge = ALPHA * NOISE * equations_of(head.sums, 0, None).variance
    features = head.sums.counted["kept"].features[0].double() * head.grid.limit
    targets = torch.nn.functional.one_hot(y).double()
    for i in (0, 17, 58):
        rest = torch.arange(60) != i
        output, factor = ridge_at(x[i], x[rest], targets[rest], mass[rest], ridge)
        place = int((features == x[i]).all(1).nonzero())
        assert torch.allclose(scores[place], output / (NOISE * factor).sqrt(), atol=1e-9)


def test_what_is_left_out_of_few_samples_is_right_as_often_as_without_it() -> None:
    """Few samples are fitted closely: what is left of a sample is then far below its features."""
    y = torch.arange(24) % 2
    x = 10.0 + normal(24, 400) + 2.0 * y.unsqueeze(1)

    def fitted(rows: Tensor) -> ol.ExactHead:
        head = ol.ExactHead(
            "linear", classes=2, calibration=1, prior_precision=1.0, noise_variance=1e-6
        )
        head.update(x[rows], y[rows])
        return head

    right = []
    for i in range(24):
        others = torch.arange(24) != i
        right.append(bool(fitted(others).predict(x[i : i + 1]).argmax() == y[i]))
    assert sum(right) > 20
    whole = fitted(torch.ones(24, dtype=torch.bool))
    assert solve(whole, whole.sums).left_out.tolist() == right


def test_the_temperature_is_the_best_for_the_mixture_of_maps() -> None:
    """Against a grid of temperatures."""
    x, y = blobs(4000)
    head = ol.ExactHead(maps(width=60))
    head.update(x, y)
    truth = head.sums.counted["kept"].keys[:256, 1]
    scores = torch.stack([posterior.held_out for posterior in head.heads])

    def loss(sharpness: float) -> float:
        mixture = (sharpness * scores).softmax(-1).mean(0)
        unusual = math.log(sharpness / SHARPNESS) / 0.4
        return cross_entropy(mixture.log(), truth, reduction="sum").item() + unusual**2 / 2

    grid = [math.exp(k / 50) for k in range(-50, 120)]
    assert head.solution().sharpness == pytest.approx(min(grid, key=loss), rel=0.02)


def test_the_ridge_is_where_the_samples_and_the_evidence_are_the_most_probable() -> None:
    """Against a grid of ridges, each a head of its own with that ridge."""
    x, y = blobs(800)

    def fed_with(**options: float) -> ol.ExactHead:
        head = ol.ExactHead(maps(n=1), calibration=4, **options)
        head.update(x, y)
        return head

    best = fed_with().heads[0]
    ridge = best.prior_precision * best.noise_variance

    def score_of(factor: float) -> float:
        precision = factor * ridge / best.noise_variance
        head = fed_with(prior_precision=precision, noise_variance=best.noise_variance)
        held = equations_of(head.sums, 0, None).held
        evidence = head.heads[0].log_evidence / (799 * 9)
        return held.judge(head.heads[0].held_out.unsqueeze(0)).item() + EVIDENCE * evidence

    # with its own best noise another ridge would do a little better than here
    assert all(score_of(1.0) > score_of(factor) for factor in (0.3, 0.5, 0.7, 1.4, 2.0, 3.0))


def test_probabilities_are_calibrated_on_fresh_data() -> None:
    """The share of right answers among 5,000 new samples matches the mean confidence."""
    x, y = blobs(2000)
    head = ol.ExactHead(maps(width=100))
    head.update(x, y)
    test, truth = blobs(5000, seed=7)
    confidence, guess = head.predict(test).max(1)
    assert abs(confidence.mean() - (guess == truth).double().mean()) < 0.04


# ---------------------------------------------------------------------- weights of the maps


def test_weights_are_uniform_or_the_normalised_evidence() -> None:
    head = ol.ExactHead(maps(n=4), weights="evidence")
    head.update(X[:60], Y[:60])
    assert torch.allclose(head.log_weights, head.particle_log_evidence.log_softmax(0), atol=1e-9)
    mean = head.particle_log_evidence.logsumexp(0) - math.log(4)
    assert torch.allclose(head.log_evidence, mean)
    uniform = fed(X[:60], Y[:60])
    assert uniform.ess.item() == pytest.approx(3.0)
    assert torch.allclose(uniform.predict(X), uniform.outputs(X).softmax(-1).mean(0))


# ---------------------------------------------------------------------- shares of the classes


def test_a_uniform_prior_is_what_balanced_weights_give_where_classes_scatter_alike() -> None:
    """Two classes with the same scatter around other means; one comes eight times as often."""
    noise = (normal(64, 5, dtype=torch.float64) * 256).round() / 256
    x = torch.cat([noise, noise + 0.5])
    y = torch.arange(2).repeat_interleave(64)
    balanced, prior = (ol.ExactHead("linear", class_prior=p) for p in (None, "uniform"))
    balanced.update(x, y, sample_weight=4.5)
    prior.update(x, y, sample_weight=torch.where(y == 0, 8.0, 1.0))
    expected = balanced.predictive(x).mean
    found = prior.predictive(x).mean
    assert torch.allclose(expected, found, atol=1e-6)  # searches end within 1e-5
    prior.class_prior = [0.9, 0.1]
    assert (prior.predictive(x).mean[:, 0] > found[:, 0]).all()


def test_shares_of_a_prior_may_be_an_array_and_are_copied() -> None:
    shares = np.arange(1.0, 11.0)
    head = fed(X, Y, class_prior=shares)
    shares[:] = shares[::-1].copy()  # the caller's own array
    assert torch.equal(head.predict(X), fed(X, Y, class_prior=list(range(1, 11))).predict(X))
    values = fed(X, X[:, :2], targets="values")
    before = values.predict(X)
    values.class_prior = "uniform"  # values have none
    assert torch.equal(values.predict(X), before)


def test_a_uniform_prior_weighs_held_out_samples_too():
    """A sample of a class that comes a tenth as often has ten times the weight."""
    x, y = blobs(4000)
    keep = (y != 9) | (torch.arange(4000) % 100 == 9)
    head = fed(x[keep], y[keep], calibration=4)
    held = equations_of(head.sums, 0, ratios_of("uniform", head.sums)).held
    rare = held.weights[held.labels == 9]
    others = held.weights[held.labels == 0]
    assert (rare == rare[0]).all() and rare[0] == pytest.approx(10 * others[0].item())
