"""Posteriors, evidence, ridge and temperature against closed forms, scikit-learn and grids."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge, Ridge
from tests.exact.toys import X, Y, blobs, fed, line, maps, regression
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

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
from orderless.exact.solution import equations_of, ratios_of
from orderless.exact.sums import column_numbers

ALPHA = 2.5
NOISE = 0.3
KNOWN: dict[str, Any] = {
    "standardize": False,
    "prior_precision": ALPHA,
    "noise_variance": NOISE,
}


# ---------------------------------------------------------------------- the posterior


def test_fixed_hyperparameters_give_the_closed_form() -> None:
    x, y = regression()
    head = line(**KNOWN)
    head.update(x[:20], y[:20])
    head.update(x[20:], y[20:])
    precision = x.T @ x / NOISE + ALPHA * torch.eye(8, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.T @ y / NOISE)
    test = regression(10)[0] + 0.125
    predicted = head.predictive(test)
    variance = NOISE + (test @ torch.linalg.inv(precision) * test).sum(1)
    assert torch.allclose(predicted.mean[:, 0], test @ mean, atol=1e-8)
    assert torch.allclose(predicted.variance[:, 0], variance, atol=1e-8)
    assert torch.equal(head.predict(test), predicted.mean)


def test_evidence_of_values_is_the_gaussian_marginal_density() -> None:
    x, y = regression(30)
    half = (y / 2 * 4096).round() / 4096
    head = line(**KNOWN)
    head.update(x, torch.stack([y, half], 1))
    covariance = NOISE * np.eye(30) + (x @ x.T / ALPHA).numpy()
    expected = [multivariate_normal.logpdf(t.numpy(), np.zeros(30), covariance) for t in (y, half)]
    assert head.log_evidence.item() == pytest.approx(sum(expected), rel=1e-10)


@pytest.mark.parametrize("standardize", [False, True])
def test_evidence_of_classes_is_the_density_of_their_contrasts(standardize: bool) -> None:
    """With an intercept the data are their n - 1 contrasts over samples: the mean is free."""
    x = regression(24)[0]
    x[:, 3] = 1.0  # a feature that never varies
    labels = torch.arange(24) % 3
    head = ol.ExactHead("linear", **{**KNOWN, "standardize": standardize})
    head.update(x, labels)
    contrasts = np.linalg.qr(np.eye(3) - 1 / 3)[0][:, :2]
    targets = np.eye(3)[labels.numpy()] @ contrasts
    features = x.numpy()
    if standardize:
        basis = np.linalg.qr(np.eye(24) - 1 / 24)[0][:, :23]
        targets = basis.T @ targets
        features = basis.T @ features / np.sqrt(features.var(0).mean())  # one scale for all
    covariance = NOISE * np.eye(len(features)) + features @ features.T / ALPHA
    expected = multivariate_normal.logpdf(targets.T, np.zeros(len(features)), covariance).sum()
    assert head.particle_log_evidence.item() == pytest.approx(expected, rel=1e-10)


def test_maximised_evidence_agrees_with_bayesian_ridge() -> None:
    x, y = regression(200, 12)
    flat = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0}
    oracle = BayesianRidge(fit_intercept=False, max_iter=5000, tol=1e-12, **flat)
    oracle.fit(x.numpy(), y.numpy())
    head = line(standardize=False)
    head.update(x, y)
    (posterior,) = head.heads
    assert posterior.noise_variance == pytest.approx(1 / oracle.alpha_, rel=1e-4)
    assert posterior.prior_precision == pytest.approx(oracle.lambda_, rel=1e-4)
    mean, deviation = oracle.predict(x[:5].numpy(), return_std=True)
    predicted = head.predictive(x[:5])
    assert predicted.mean[:, 0].numpy() == pytest.approx(mean, rel=1e-4)
    assert predicted.variance[:, 0].sqrt().numpy() == pytest.approx(deviation, rel=1e-4)


def test_all_features_have_one_scale() -> None:
    """Against scikit-learn's ridge on centred features that one number makes of unit size; sizes of
    the features differ, one never varies and does so later."""
    x, y = regression(200, 12)
    x = x * torch.logspace(0.5, -1.0, 12, dtype=torch.float64)
    x = (x * 4096).round() / 4096 + 0.5  # on the grid
    x[:, 7] = 1.0
    new = x[:5] + 0.25
    head = line()
    head.update(x, y)
    (posterior,) = head.heads
    scale = np.sqrt(x.numpy().var(0).mean())
    ridge = posterior.prior_precision * posterior.noise_variance
    oracle = Ridge(alpha=ridge).fit(x.numpy() / scale, y.numpy())
    predicted = head.predictive(new)
    assert predicted.mean[:, 0].numpy() == pytest.approx(oracle.predict(new.numpy() / scale))
    rows = (x.numpy() - x.numpy().mean(0)) / scale
    inverse = np.linalg.inv(rows.T @ rows + ridge * np.eye(12))
    z = (new.numpy() - x.numpy().mean(0)) / scale
    variance = posterior.noise_variance * (1 + 1 / 200 + (z @ inverse * z).sum(1))
    assert predicted.variance[:, 0].numpy() == pytest.approx(variance)
    far = head.predictive(new + 7.0).variance
    assert (far > 2 * predicted.variance).all()


def test_standardisation_makes_scale_and_shift_of_features_irrelevant() -> None:
    x, y = regression()
    plain, moved = line(), line()
    plain.update(x, y)
    moved.update(x * 2 - 0.5, y)
    a = plain.predictive(x)
    b = moved.predictive(x * 2 - 0.5)
    assert torch.allclose(a.mean, b.mean, atol=1e-6)  # both searches stop within 1e-5 of the best
    assert torch.allclose(a.variance, b.variance, rtol=1e-4)


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
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 700, dtype=torch.float64, generator=generator)
    features = torch.cat([(x @ weight).relu(), torch.ones(900, 1, dtype=torch.float64)], dim=1)
    equations = NormalEquations.of(
        features.T @ features,
        targets.T @ features,
        targets.square().sum(0),
        classes=classes,
        standardize=True,
    )
    posterior = solve_head(equations)
    ridge = posterior.prior_precision * posterior.noise_variance * equations.variance
    ridges = ridge * torch.logspace(-2, 2, 41, dtype=torch.float64)
    evidence = score(equations, minimise(equations, ridges)).log_evidence
    assert 0.5 * ridge < ridges[evidence.argmax()] < 2.0 * ridge
    assert evidence.max().item() == pytest.approx(posterior.log_evidence, abs=5.0)


def test_more_ridge_for_the_one_that_needs_it() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 9, dtype=torch.float64, generator=generator)
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
def test_predictions_without_a_sample_are_those_of_a_head_without_it(weights: list[float]) -> None:
    """Without standardisation, whose means and scales would know the sample that is left out."""
    x, y = blobs(60)
    x = (x * 64).round() / 64  # exact as float16
    mass = torch.tensor(weights).repeat(60)[:60]

    def fed_with(rows: Tensor) -> ol.ExactHead:
        head = ol.ExactHead("linear", calibration=1, **KNOWN)
        head.update(x[rows], y[rows], sample_weight=mass[rows])
        return head

    everyone = torch.arange(60)
    head = fed_with(everyone)
    found = head.heads[0].held_out
    assert found is not None and found.shape == (60, 10)
    features = head.sums.counted["kept"].features[0].double() * head.grid.limit
    for i in (0, 17, 58):
        mean, variance = fed_with(everyone[everyone != i]).predictive(x[i : i + 1])
        place = int((features == x[i]).all(1).nonzero())
        assert torch.allclose(found[place], (mean / variance.sqrt())[0], atol=1e-9)


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
        held = equations_of(head.sums, 0, None, True).held
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


def test_evidence_prefers_features_that_carry_the_signal() -> None:
    blind = ol.features.RandomReLU(12, 40)
    nn.init.zeros_(blind.weight[:, :10])
    both = ol.Ensemble.from_modules([ol.features.RandomReLU(12, 40), blind])
    head = ol.ExactHead(both, weights="evidence")
    head.update(X, Y)
    assert head.weights[0] > 0.999


# ---------------------------------------------------------------------- shares of the classes


def test_a_uniform_prior_is_what_balanced_weights_give_where_classes_scatter_alike() -> None:
    """Two classes with the same scatter around other means; one comes eight times as often."""
    generator = torch.Generator().manual_seed(0)
    noise = (torch.randn(64, 5, generator=generator, dtype=torch.float64) * 256).round() / 256
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


def test_a_uniform_prior_is_one_over_labels_whatever_tasks_have_them() -> None:
    head = fed(X, Y)
    head.sums.columns = column_numbers([(0, 0), (0, 1), (1, 0)])
    squares = head.sums.sums["squares"]
    counts = torch.tensor([6.0, 1.0, 2.0], dtype=torch.float64)
    head.sums.sums["squares"] = squares.map(lambda _: counts)
    expected = torch.tensor([9 / 4, 9 / 2, 9 / 4]).double()  # half of nine samples of either label
    assert torch.allclose(ratios_of("uniform", head.sums) * counts, expected)


def test_shares_of_a_prior_may_be_an_array_and_are_copied() -> None:
    shares = np.arange(1.0, 11.0)
    head = fed(X, Y, class_prior=shares)
    shares[:] = shares[::-1].copy()  # the caller's own array
    assert torch.equal(head.predict(X), fed(X, Y, class_prior=list(range(1, 11))).predict(X))
    values = fed(X, X[:, :2], targets="values")
    before = values.predict(X)
    values.class_prior = "uniform"  # values have none
    assert torch.equal(values.predict(X), before)


def test_a_rare_class_is_found_with_a_uniform_prior_which_weighs_held_out_samples_too() -> None:
    x, y = blobs(4000)
    keep = (y != 9) | (torch.arange(4000) % 100 == 9)
    test, truth = blobs(1000, seed=7)

    def recall(head: ol.ExactHead) -> float:
        guess = head.predict(test).argmax(1)
        return (guess[truth == 9] == 9).double().mean().item()

    head = fed(x[keep], y[keep], calibration=4)
    before = recall(head)
    head.class_prior = "uniform"
    assert recall(head) > before + 0.2
    held = equations_of(head.sums, 0, ratios_of("uniform", head.sums), True).held
    rare = held.weights[held.labels == 9]
    others = held.weights[held.labels == 0]
    assert (rare == rare[0]).all() and rare[0] == pytest.approx(10 * others[0].item())
