"""What the regressor answers, and how sure it is."""

from __future__ import annotations

import numpy as np
import pytest

from orderless import ExactRegressor


def test_error_bars_of_the_regressor_cover_what_they_should() -> None:
    generator = np.random.default_rng(0)
    X = generator.uniform(-3, 3, size=(400, 1))
    y = 50 + 20 * (np.sin(X[:, 0]) + 0.2 * generator.normal(size=400))
    model = ExactRegressor(n_features=256, random_state=0).fit(X[:300], y[:300])
    mean, deviation = model.predict(X[300:], return_std=True)
    assert model.score(X[300:], y[300:]) > 0.85
    covered = (np.abs(y[300:] - mean) < 2 * deviation).mean()
    assert covered > 0.85  # 0.95 for the truth; 100 test samples and imperfect fits
    assert 3 < np.median(deviation) < 8  # the noise is 4


def test_far_from_the_data_it_is_less_sure() -> None:
    X = np.linspace(-1, 1, 100)[:, None]
    model = ExactRegressor(random_state=0, input_scale=1.0).fit(X, np.sin(3 * X[:, 0]))
    _, deviation = model.predict(np.array([[0.0], [3.5]]), return_std=True)
    assert deviation[1] > 3 * deviation[0]


def test_a_target_far_from_all_others_makes_the_grid_coarser() -> None:
    X = np.random.default_rng(0).normal(size=(400, 2))
    y = X[:, 0].copy()
    y[0] = 1e4
    model = ExactRegressor(n_features=32, random_state=0).fit(X, y)
    assert abs(y[0] - model.target_mean_) < 16 * model.target_scale_


def test_targets_that_are_too_large_for_a_stream_are_refused_with_what_would_fit() -> None:
    X, y = np.zeros((3, 2)), np.array([100.0, 101.0, 102.0])
    model = ExactRegressor(n_features=16, random_state=0)
    with pytest.raises(ValueError, match=r"got 102: set target_mean and target_scale"):
        model.partial_fit(X, y)
    assert not hasattr(model, "head_")
    model.set_params(target_mean=101.0, target_scale=0.816).partial_fit(X, y)
    assert model.target_scale_ == 0.816
