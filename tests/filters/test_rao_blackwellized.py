"""The exact filter: no order, closed forms, evidence as a density, errors that change nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn

import orderless as ol
from orderless.features import RandomReLU
from orderless.filters.evidence import maximize
from orderless.filters.rao_blackwellized import RaoBlackwellizedFilter

FIVE_TASKS = range(5)


def blobs(count: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ten classes in 12 dimensions, overlapping."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 12, generator=torch.Generator().manual_seed(99))
    y = torch.arange(count) % 10
    return centres[y] + 0.7 * torch.randn(count, 12, generator=generator), y


def ensemble(n: int = 3, width: int = 40, seed: int = 0) -> ol.Ensemble:
    return ol.Ensemble(lambda: RandomReLU(12, width, bias_scale=0.3), n, seed=seed)


def in_order(order: tuple[int, ...], **options: object) -> RaoBlackwellizedFilter:
    x, y = blobs()
    rb = RaoBlackwellizedFilter(ensemble(), classes=2, **options)  # type: ignore[arg-type]
    for task in order:
        mine = y // 2 == task
        rb.update(x[mine], y[mine] % 2, task=task)
    return rb


def same_bits(a: RaoBlackwellizedFilter, b: RaoBlackwellizedFilter, x: Tensor) -> bool:
    return (
        torch.equal(a.predict(x), b.predict(x))
        and torch.equal(a.log_weights, b.log_weights)
        and torch.equal(a.log_evidence, b.log_evidence)
        and torch.equal(a.predictive(x).variance, b.predictive(x).variance)
    )


# ---------------------------------------------------------------------- no order


@pytest.mark.parametrize("across", ["max", "probs"])
def test_ten_orders_of_the_tasks_give_the_same_bits(across: str) -> None:
    x, _ = blobs(50, seed=1)
    first = in_order((0, 1, 2, 3, 4), across_tasks=across)
    orders = list(itertools.permutations(FIVE_TASKS))[7::12]
    assert len(orders) == 10
    for order in orders:
        assert same_bits(first, in_order(order, across_tasks=across), x)


@pytest.mark.parametrize("size", [1, 7, 512])
def test_shuffled_samples_in_any_batch_size_give_the_same_bits(size: int) -> None:
    x, y = blobs()
    whole = RaoBlackwellizedFilter(ensemble(), calibration=50)
    whole.update(x, y)
    shuffled = RaoBlackwellizedFilter(ensemble(), calibration=50)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(size))
    for part in order.split(size):
        shuffled.update(x[part], y[part])
    assert same_bits(whole, shuffled, blobs(50, seed=1)[0])


@pytest.mark.parametrize("size", [1, 7, 512])
def test_an_ordinary_network_as_feature_map_has_no_order_either(size: int) -> None:
    """Its float32 kernels differ by batch size; blocks of one size keep that away."""
    x, y = blobs()
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(12, 37), nn.Tanh(), nn.BatchNorm1d(37), nn.Linear(37, 19))
    filters = [RaoBlackwellizedFilter(body, block_size=64) for _ in range(2)]
    filters[0].update(x, y)
    for part in torch.randperm(len(x)).split(size):
        filters[1].update(x[part], y[part])
    assert same_bits(*filters, blobs(50, seed=1)[0])


def test_blocks_of_one_size_give_a_sample_the_same_features_in_any_batch() -> None:
    """A grid so fine that a difference in the last bits of float32 would show."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 100))
    grid = RaoBlackwellizedFilter(body, bits=20, feature_limit=2.0, block_size=64).grid
    x = torch.randn(192, 300)

    def features(rows: Tensor, size: int) -> Tensor:
        return torch.cat([grid(part)[0][0] for part in x[rows].split(size)])

    whole, order = features(torch.arange(192), 64), torch.randperm(192)
    for size in (1, 7, 64):
        assert torch.equal(features(order, size), whole[order])


def test_a_plus_b_is_one_filter_fed_both() -> None:
    x, y = blobs()
    parts = [RaoBlackwellizedFilter(ensemble(), calibration=50) for _ in range(3)]
    for part, rows in zip(parts, (y < 3, y == 3, y > 3), strict=True):
        part.update(x[rows], y[rows])
    whole = RaoBlackwellizedFilter(ensemble(), calibration=50)
    whole.update(x, y)
    test = blobs(50, seed=1)[0]
    before = parts[0].predict(test)
    assert same_bits(parts[2] + parts[0] + parts[1], whole, test)
    assert same_bits(parts[0] + (parts[1] + parts[2]), whole, test)
    assert torch.equal(parts[0].predict(test), before)
    empty = RaoBlackwellizedFilter(ensemble(), calibration=50)
    joined = whole + empty
    joined.update(x[:5], y[:5])
    assert whole.samples == 300 and joined.samples == 305


def test_the_sums_are_those_of_integers() -> None:
    """Python's integers as oracle for Phi^T Phi."""
    x, y = blobs(40)
    rb = RaoBlackwellizedFilter(ensemble(n=1, width=6))
    rb.update(x, y)
    scale = 4096
    rows = [[int(v) for v in row] for row in (rb.grid(x)[0][0].double() * scale).tolist()]
    assert rb._statistics is not None
    for i, j in itertools.product(range(6), range(6)):
        expected = sum(row[i] * row[j] for row in rows)
        assert int(rb._statistics.gram[0, i, j].item() * scale**2) == expected


# ---------------------------------------------------------------------- closed forms


def regression(n: int = 60, width: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs and targets that lie on the grid already, so that nothing is rounded away."""
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(n, width, generator=generator, dtype=torch.float64) * 256).round() / 256
    truth = torch.randn(width, generator=generator, dtype=torch.float64)
    y = x @ truth + 0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return x.clamp(-8, 8), (y * 256).round() / 256


def test_fixed_hyperparameters_give_the_closed_form() -> None:
    x, y = regression()
    alpha, noise = 2.5, 0.3
    rb = RaoBlackwellizedFilter(
        nn.Identity(),
        targets="values",
        standardize=False,
        prior_precision=alpha,
        noise_variance=noise,
    )
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
    rb = RaoBlackwellizedFilter(
        nn.Identity(),
        targets="values",
        standardize=False,
        prior_precision=alpha,
        noise_variance=noise,
    )
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
    rb = RaoBlackwellizedFilter(
        nn.Identity(), standardize=standardize, prior_precision=alpha, noise_variance=noise
    )
    rb.update(x, labels)
    contrasts = np.linalg.qr(np.eye(3) - 1 / 3)[0][:, :2]
    targets, features = np.eye(3)[labels.numpy()] @ contrasts, x.numpy()
    if standardize:
        basis = np.linalg.qr(np.eye(24) - 1 / 24)[0][:, :23]
        scale = np.where(features.std(0) > 0, features.std(0), np.inf)
        targets, features = basis.T @ targets, basis.T @ ((features - features.mean(0)) / scale)
    covariance = noise * np.eye(len(features)) + features @ features.T / alpha
    expected = multivariate_normal.logpdf(targets.T, np.zeros(len(features)), covariance).sum()
    assert rb.particle_log_evidence.item() == pytest.approx(expected, rel=1e-10)


def test_maximised_evidence_agrees_with_bayesian_ridge() -> None:
    x, y = regression(200, 12)
    oracle = BayesianRidge(
        fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, max_iter=5000, tol=1e-12
    ).fit(x.numpy(), y.numpy())
    rb = RaoBlackwellizedFilter(nn.Identity(), targets="values", standardize=False)
    rb.update(x, y)
    (head,) = rb.heads
    assert head.noise_variance == pytest.approx(1 / oracle.alpha_, rel=1e-4)
    assert head.prior_precision == pytest.approx(oracle.lambda_, rel=1e-4)
    mean, deviation = oracle.predict(x[:5].numpy(), return_std=True)
    predicted = rb.predictive(x[:5])
    assert predicted.mean[:, 0].numpy() == pytest.approx(mean, rel=1e-4)
    assert predicted.variance[:, 0].sqrt().numpy() == pytest.approx(deviation, rel=1e-4)


def test_standardisation_makes_scale_and_shift_of_features_irrelevant() -> None:
    x, y = regression()
    filters = [RaoBlackwellizedFilter(nn.Identity(), targets="values") for _ in range(2)]
    filters[0].update(x, y)
    filters[1].update(x * 2 - 0.5, y)
    a, b = filters[0].predictive(x), filters[1].predictive(x * 2 - 0.5)
    assert torch.allclose(a.mean, b.mean, atol=1e-6)  # both searches stop within 1e-5 of the best
    assert torch.allclose(a.variance, b.variance, rtol=1e-4)


def test_the_search_finds_a_maximum_inside_and_at_a_bound() -> None:
    assert maximize(lambda t: -math.cosh(t - 3.3), 0.0, -9.0, 9.0) == pytest.approx(3.3, abs=1e-5)
    assert maximize(lambda t: t, 0.0, -9.0, 9.0) == pytest.approx(9.0)
    assert maximize(lambda t: -t, 0.0, -9.0, 9.0) == pytest.approx(-9.0)


# ---------------------------------------------------------------------- weights and predictions


def test_weights_are_the_normalised_evidence() -> None:
    x, y = blobs(60)
    rb = RaoBlackwellizedFilter(ensemble(n=4))
    rb.update(x, y)
    assert torch.allclose(rb.log_weights, rb.particle_log_evidence.log_softmax(0), atol=1e-9)
    mean = rb.particle_log_evidence.logsumexp(0) - math.log(4)
    assert torch.allclose(rb.log_evidence, mean)
    tempered = RaoBlackwellizedFilter(ensemble(n=4), weights="tempered", min_ess=3.0)
    tempered.update(x, y)
    assert tempered.ess.item() == pytest.approx(3.0, abs=1e-6)
    uniform = RaoBlackwellizedFilter(ensemble(n=4), weights="uniform")
    uniform.update(x, y)
    assert uniform.ess.item() == pytest.approx(4.0)
    assert torch.allclose(uniform.predict(x), uniform.outputs(x).softmax(-1).mean(0))


def test_evidence_prefers_features_that_carry_the_signal() -> None:
    x, y = blobs()
    blind = RandomReLU(12, 40)
    nn.init.zeros_(blind.weight[:, :10])
    features = ol.Ensemble.from_modules([RandomReLU(12, 40), blind])
    rb = RaoBlackwellizedFilter(features)
    rb.update(x, y)
    assert rb.weights[0] > 0.999


def test_domain_task_and_class_predictions_read_the_same_head() -> None:
    x, y = blobs()
    rb = in_order((0, 1, 2, 3, 4), weights="uniform")
    scores = rb.predictive(x).mean  # columns (0, 0), (0, 1), (1, 0), ...: the ten classes
    classes = RaoBlackwellizedFilter(ensemble(), weights="uniform")
    classes.update(x, y)
    assert rb.columns == [(t, c) for t in range(5) for c in range(2)]
    assert torch.allclose(scores, classes.predictive(x).mean, atol=1e-10)
    single = in_order((0, 1, 2, 3, 4))
    chosen = single.weights.argmax()
    best = single.outputs(x)[chosen].argmax(1)
    features = single.grid(x)[0][chosen].double()
    assert torch.equal(best, single.heads[chosen].outputs(features).argmax(1) % 2)
    mine = y // 2 == 3
    within = rb.predict(x[mine], task=3)
    assert within.shape == (60, 2) and torch.allclose(within.sum(1), torch.ones(60).double())
    assert (within.argmax(1) == y[mine] % 2).float().mean() > 0.9


def test_probabilities_across_tasks_are_sums_over_tasks() -> None:
    x, y = blobs()
    rb = in_order((0, 1, 2, 3, 4))
    classes = RaoBlackwellizedFilter(ensemble(), calibration=0)
    classes.update(x, y)
    plain = in_order((0, 1, 2, 3, 4), calibration=0)
    ten = classes.predict(x).unflatten(1, (5, 2)).sum(1)
    assert torch.allclose(plain.predict(x, across_tasks="probs"), ten, atol=1e-8)
    assert torch.allclose(rb.predict(x).sum(1), torch.ones(len(x)).double())


def test_probabilities_are_calibrated_on_fresh_data() -> None:
    """The share of right answers among 5,000 new samples matches the mean confidence."""
    x, y = blobs(2000)
    rb = RaoBlackwellizedFilter(ensemble(width=100))
    rb.update(x, y)
    test, truth = blobs(5000, seed=7)
    confidence, guess = rb.predict(test).max(1)
    assert abs(confidence.mean() - (guess == truth).double().mean()) < 0.04


def test_classes_appear_when_they_appear() -> None:
    x, y = blobs()
    rb = RaoBlackwellizedFilter(ensemble(), classes=12)
    assert torch.allclose(rb.predict(x[:4]), torch.full((4, 12), 1 / 12).double())
    rb.update(x[y == 4], y[y == 4])
    assert torch.equal(rb.predict(x[:4]).argmax(1), torch.full((4,), 4))
    rb.update(x[y == 2], y[y == 2])
    assert (rb.predict(x)[:, [0, 1, 3, 5, 11]] == 0).all()
    assert rb.columns == [(-1, 2), (-1, 4)]


def test_variance_grows_away_from_the_data() -> None:
    x, y = regression()
    rb = RaoBlackwellizedFilter(nn.Identity(), targets="values")
    rb.update(x, y)
    near, far = rb.predictive(x[:1]).variance, rb.predictive(x[:1] + 7.0).variance
    assert far > 2 * near


# ---------------------------------------------------------------------- state and bad input


def test_a_saved_filter_goes_on_as_if_nothing_had_happened(tmp_path) -> None:  # type: ignore[no-untyped-def]
    x, y = blobs()
    rb = in_order((0, 1, 2, 3, 4))
    ol.save(tmp_path / "rb.safetensors", rb)
    again = RaoBlackwellizedFilter(ensemble(seed=77), classes=2)
    ol.load(tmp_path / "rb.safetensors", into=again)
    assert same_bits(rb, again, x)
    for each in (rb, again):
        each.update(x[:9], y[:9] % 2, task=7)
    assert same_bits(rb, again, x)
    other = RaoBlackwellizedFilter(ensemble(width=41), classes=2)
    with pytest.raises(ValueError, match="another model"):
        other.load_state_dict(rb.state_dict())
    coarse = RaoBlackwellizedFilter(ensemble(), classes=2, bits=12)
    with pytest.raises(ValueError, match="another grid"):
        coarse.load_state_dict(rb.state_dict())


class SpoiltAt(nn.Module):
    """Features that are NaN for samples whose first value is above 50."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 50, torch.nan, x)


def test_bad_input_changes_nothing() -> None:
    x, y = blobs()
    rb = RaoBlackwellizedFilter(SpoiltAt(), classes=10, block_size=16, calibration=20)
    rb.update(x[:100], y[:100] % 8)
    before, prediction = rb.state_dict(), rb.predict(x)
    spoilt = x.clone()
    spoilt[290, 0] = 60.0  # in the last block: all others are absorbed and taken back
    bad = [
        (spoilt, y, {}, "not finite"),
        (torch.full_like(x, torch.inf), y, {}, "not finite"),
        (x, y + 1, {}, "between 0 and 9, got 10"),
        (x, y - 1, {}, "between 0 and 9, got -1"),
        (x, y.float(), {}, "whole numbers"),
        (x, y[:-1], {}, "300 samples and y has 299"),
        (x, y, {"task": 1}, "without a task"),
        (x[:, :5], y, {}, "5 features, but 12"),
        (x.unsqueeze(2), y, {}, "Flatten"),
    ]
    for inputs, targets, options, message in bad:
        with pytest.raises((ValueError, TypeError), match=message):
            rb.update(inputs, targets, **options)  # type: ignore[arg-type]
    after = rb.state_dict()
    for group in ("statistics", "sample"):
        for name, value in before[group].items():
            same = (
                torch.equal(value, after[group][name])
                if torch.is_tensor(value)
                else (value == after[group][name])
            )
            assert same, (group, name)
    assert torch.equal(rb.predict(x), prediction)


def test_different_feature_maps_do_not_merge() -> None:
    x, y = blobs()
    a, b = (RaoBlackwellizedFilter(ensemble(seed=seed)) for seed in (0, 1))
    a.update(x, y)
    b.update(x, y)
    with pytest.raises(ValueError, match="different feature maps"):
        a + b
    fine = RaoBlackwellizedFilter(ensemble(), bits=12)
    with pytest.raises(ValueError, match="different feature maps"):
        a + fine


def test_more_samples_than_can_be_summed_exactly_are_refused() -> None:
    x, y = blobs(64)
    rb = RaoBlackwellizedFilter(ensemble(), bits=20)  # 2^12 samples
    rb.update(x.repeat(63, 1), y.repeat(63))
    with pytest.raises(ValueError, match="the limit is 4096"):
        rb.update(x.repeat(2, 1), y.repeat(2))
    with pytest.raises(ValueError, match="the limit is 4096"):
        rb + rb
    rb.update(x, y)
    assert rb.samples == 4096


def test_more_features_than_memory_are_refused() -> None:
    rb = RaoBlackwellizedFilter(nn.Identity(), block_size=1)
    with pytest.raises(MemoryError, match="use at most"):
        rb.update(torch.zeros(1, 1_000_000), torch.zeros(1, dtype=torch.long))
    assert rb.samples == 0


def test_clipped_values_are_counted() -> None:
    rb = RaoBlackwellizedFilter(nn.Identity(), feature_limit=2.0)
    rb.update(torch.tensor([[1.0, 3.0], [-9.0, 0.5]]), torch.tensor([0, 1]))
    assert rb.clipped == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "best"}, "weights must be one of"),
        ({"min_ess": 2.0}, "belongs to weights='tempered'"),
        ({"prior_precision": 1.0}, "both"),
        ({"feature_limit": 3.0}, "power of two"),
        ({"targets": "values", "target_limit": 3.0}, "power of two"),
        ({"bits": 30}, "between 1 and 20"),
        ({"classes": 0}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RaoBlackwellizedFilter(ensemble(), **options)  # type: ignore[arg-type]


def test_reduced_precision_is_refused() -> None:
    features = ol.Ensemble(lambda: RandomReLU(12, 4), 2, precision="bf16")
    with pytest.raises(ValueError, match="precision='float32'"):
        RaoBlackwellizedFilter(features)


def test_targets_beyond_the_limit_are_refused() -> None:
    rb = RaoBlackwellizedFilter(nn.Identity(), targets="values")
    with pytest.raises(ValueError, match="larger target_limit"):
        rb.update(torch.ones(1, 3), torch.tensor([17.0]))
    with pytest.raises(TypeError, match="floats"):
        rb.update(torch.ones(1, 3), torch.tensor([1]))
    assert rb.samples == 0
