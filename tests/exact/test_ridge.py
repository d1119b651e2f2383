"""The evidence, the posterior and their maximum against closed forms and scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge, Ridge
from tests.exact.blobs import regression
from torch import nn

from orderless.exact import ExactHead
from orderless.exact.ridge import (
    NormalEquations,
    maximize,
    minimise,
    safe_cholesky,
    score,
    solve_head,
)


def with_known(alpha: float, noise: float) -> ExactHead:
    """A regression on the inputs themselves with these hyperparameters."""
    return ExactHead(
        nn.Identity(),
        targets="values",
        standardize=False,
        prior_precision=alpha,
        noise_variance=noise,
    )


def test_fixed_hyperparameters_give_the_closed_form() -> None:
    x, y = regression()
    alpha, noise = 2.5, 0.3
    rb = with_known(alpha, noise)
    rb.update(x[:20], y[:20])
    rb.update(x[20:], y[20:])
    precision = x.T @ x / noise + alpha * torch.eye(8, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.T @ y / noise)
    test = regression(10)[0] + 0.125
    predicted = rb.predictive(test)
    variance = noise + (test @ torch.linalg.inv(precision) * test).sum(1)
    assert torch.allclose(predicted.mean[:, 0], test @ mean, atol=1e-8)
    assert torch.allclose(predicted.variance[:, 0], variance, atol=1e-8)
    assert torch.equal(rb.predict(test), predicted.mean)


def test_evidence_of_values_is_the_gaussian_marginal_density() -> None:
    x, y = regression(30)
    alpha, noise = 2.5, 0.3
    rb = with_known(alpha, noise)
    rb.update(x, torch.stack([y, y / 2], 1))
    covariance = noise * np.eye(30) + (x @ x.T / alpha).numpy()
    expected = sum(
        multivariate_normal.logpdf(target.numpy(), np.zeros(30), covariance)
        for target in (y, (y / 2 * 4096).round() / 4096)
    )
    assert rb.log_evidence.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("standardize", [False, True])
def test_evidence_of_classes_is_the_density_of_their_contrasts(standardize: bool) -> None:
    """With an intercept the data are their n - 1 contrasts over samples: the mean is free."""
    x, _ = regression(24)
    x[:, 3] = 1.0  # a feature that never varies
    labels = torch.arange(24) % 3
    alpha, noise = 1.7, 0.2
    rb = ExactHead(
        nn.Identity(), standardize=standardize, prior_precision=alpha, noise_variance=noise
    )
    rb.update(x, labels)
    contrasts = np.linalg.qr(np.eye(3) - 1 / 3)[0][:, :2]
    targets, features = np.eye(3)[labels.numpy()] @ contrasts, x.numpy()
    if standardize:
        basis = np.linalg.qr(np.eye(24) - 1 / 24)[0][:, :23]
        scale = np.sqrt(features.var(0).mean())  # one for all
        targets, features = basis.T @ targets, basis.T @ features / scale
    covariance = noise * np.eye(len(features)) + features @ features.T / alpha
    expected = multivariate_normal.logpdf(targets.T, np.zeros(len(features)), covariance).sum()
    assert rb.particle_log_evidence.item() == pytest.approx(expected, rel=1e-10)


def test_maximised_evidence_agrees_with_bayesian_ridge() -> None:
    x, y = regression(200, 12)
    oracle = BayesianRidge(
        fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, max_iter=5000, tol=1e-12
    ).fit(x.numpy(), y.numpy())
    rb = ExactHead(nn.Identity(), targets="values", standardize=False)
    rb.update(x, y)
    (head,) = rb.heads
    assert head.noise_variance == pytest.approx(1 / oracle.alpha_, rel=1e-4)
    assert head.prior_precision == pytest.approx(oracle.lambda_, rel=1e-4)
    mean, deviation = oracle.predict(x[:5].numpy(), return_std=True)
    predicted = rb.predictive(x[:5])
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
    rb = ExactHead(nn.Identity(), targets="values")
    rb.update(x, y)
    (head,) = rb.heads
    scale = np.sqrt(x.numpy().var(0).mean())
    ridge = head.prior_precision * head.noise_variance
    oracle = Ridge(alpha=ridge).fit(x.numpy() / scale, y.numpy())
    predicted = rb.predictive(new)
    assert predicted.mean[:, 0].numpy() == pytest.approx(oracle.predict(new.numpy() / scale))
    rows = (x.numpy() - x.numpy().mean(0)) / scale
    inverse = np.linalg.inv(rows.T @ rows + ridge * np.eye(12))
    z = (new.numpy() - x.numpy().mean(0)) / scale
    variance = head.noise_variance * (1 + 1 / 200 + (z @ inverse * z).sum(1))
    assert predicted.variance[:, 0].numpy() == pytest.approx(variance)


def test_standardisation_makes_scale_and_shift_of_features_irrelevant() -> None:
    x, y = regression()
    filters = [ExactHead(nn.Identity(), targets="values") for _ in range(2)]
    filters[0].update(x, y)
    filters[1].update(x * 2 - 0.5, y)
    a, b = filters[0].predictive(x), filters[1].predictive(x * 2 - 0.5)
    assert torch.allclose(a.mean, b.mean, atol=1e-6)  # both searches stop within 1e-5 of the best
    assert torch.allclose(a.variance, b.variance, rtol=1e-4)


@pytest.mark.parametrize("start", [0.0, -8.0, 30.0])
def test_the_search_finds_a_maximum_inside_and_at_a_bound(start: float) -> None:
    def found(function: Callable[[float], float]) -> float:
        def values(points):
            return torch.tensor([function(t) for t in points.tolist()], dtype=torch.float64)

        return maximize(values, start, -9.0, 9.0, width=2.0, tolerance=0.01)

    assert found(lambda t: -math.cosh(t - 3.3)) == pytest.approx(3.3, abs=1e-5)
    assert found(lambda t: t) == pytest.approx(9.0)
    assert found(lambda t: -t) == pytest.approx(-9.0)


@pytest.mark.parametrize("classes", [False, True])
def test_fewer_features_tell_the_ridge_of_all(classes: bool) -> None:
    """Against the best of a grid of ridges of the whole model: no evidence is lost."""
    x, y = regression(900)
    targets = nn.functional.one_hot((y > 0).long()).double() if classes else y.unsqueeze(1)
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(8, 700, dtype=torch.float64, generator=generator)
    features = torch.cat([(x @ maps).relu(), torch.ones(900, 1, dtype=torch.float64)], dim=1)
    sums = features.T @ features, targets.T @ features, targets.square().sum(0)
    equations = NormalEquations.of(*sums, classes=classes, standardize=True)
    head = solve_head(equations)
    ridge = head.prior_precision * head.noise_variance * equations.variance
    ridges = ridge * torch.logspace(-2, 2, 41, dtype=torch.float64)
    every = score(equations, minimise(equations, ridges)).log_evidence
    assert 0.5 * ridge < ridges[every.argmax()] < 2.0 * ridge
    assert every.max().item() == pytest.approx(head.log_evidence, abs=5.0)


def test_more_ridge_for_the_one_that_needs_it() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 9, dtype=torch.float64, generator=generator)
    good = torch.eye(9, dtype=torch.float64) + rows.T @ rows
    singular = rows.T @ rows - 1e-13 * torch.eye(9, dtype=torch.float64)
    ridges = torch.tensor([0.5, 1e-15], dtype=torch.float64)
    (plain,) = safe_cholesky(good.clone, ridges[:1])
    assert torch.equal(plain, torch.linalg.cholesky(good + 0.5 * torch.eye(9)))
    (helped,) = safe_cholesky(singular.clone, ridges[1:])
    assert torch.allclose(helped @ helped.T, singular, atol=1e-10)
    together = safe_cholesky(singular.clone, ridges)
    shifted = singular + 0.5 * torch.eye(9, dtype=torch.float64)
    assert torch.equal(together[0], torch.linalg.cholesky(shifted))  # no more than its own
    assert torch.equal(together[1], helped)
    with pytest.raises(FloatingPointError, match="not positive definite"):
        safe_cholesky(lambda: -torch.eye(3, dtype=torch.float64), ridges[1:])
