"""What the regressor answers, and how sure it is."""

from __future__ import annotations

import numpy as np
import pytest

from orderless import ParticleRegressor


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rb", "wpf", "averaging"])
def test_error_bars_of_the_regressor_cover_what_they_should(method: str) -> None:
    generator = np.random.default_rng(0)
    X = generator.uniform(-3, 3, size=(400, 1))
    y = 50 + 20 * (np.sin(X[:, 0]) + 0.2 * generator.normal(size=400))
    model = ParticleRegressor(method, random_state=0, epochs=40).fit(X[:300], y[:300])
    mean, deviation = model.predict(X[300:], return_std=True)
    assert model.score(X[300:], y[300:]) > 0.85
    covered = (np.abs(y[300:] - mean) < 2 * deviation).mean()
    assert covered > 0.85  # 0.95 for the truth; 100 test samples and imperfect fits
    assert 3 < np.median(deviation) < 8  # the noise is 4


def test_far_from_the_data_the_exact_regressor_is_less_sure() -> None:
    X = np.linspace(-1, 1, 100)[:, None]
    model = ParticleRegressor(random_state=0, input_scale=1.0).fit(X, np.sin(3 * X[:, 0]))
    _, deviation = model.predict(np.array([[0.0], [3.5]]), return_std=True)
    assert deviation[1] > 3 * deviation[0]


def test_a_stream_whose_first_call_failed_can_begin_again() -> None:
    X, y = np.zeros((3, 2)), np.array([100.0, 101.0, 102.0])
    model = ParticleRegressor(n_features=16, random_state=0)
    with pytest.raises(ValueError, match="set both to fit y"):
        model.partial_fit(X, y)
    assert not hasattr(model, "filter_")
    model.set_params(target_mean=100.0, target_scale=10.0).partial_fit(X, y)
    assert model.target_scale_ == 10.0
