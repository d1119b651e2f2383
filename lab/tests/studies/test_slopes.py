"""The law of order variance: the published slopes, and the study on few orders."""

import json
from pathlib import Path

import pytest
from torch import nn

LAB = Path(__file__).parents[2]
POWERS = {"SGD": (4.0, 0.1), "momentum": (2.0, 0.2), "AdamW": (2.0, 0.2)}


@pytest.fixture
def slopes(study, monkeypatch):
    """The study at two rates."""
    monkeypatch.setattr(study, "RATES", [1e-5, 1e-4])
    monkeypatch.setattr(study, "FITTED", 2)
    return study


def test_published_slopes_are_the_powers_of_the_theory():
    rows = json.loads((LAB / "results" / "studies" / "slopes.json").read_text())["rows"]
    smooth = [row for row in rows if row["activation"] == "Tanh" and row["optimizer"] in POWERS]
    assert {row["data"] for row in smooth} == {"digits", "breast cancer"}
    for row in smooth:
        power, tolerance = POWERS[row["optimizer"]]
        for what in ("weights", "predictions"):
            assert row["slopes"][what] == pytest.approx(power, abs=tolerance)


@pytest.mark.parametrize(("optimizer", "power"), [("SGD", 4.0), ("momentum", 2.0)])
def test_order_variance_falls_with_the_power_of_the_rate(slopes, optimizer, power):
    row = slopes.law("breast cancer", "gradient descent", optimizer, nn.Tanh, 3)
    assert row["slopes"]["weights"] == pytest.approx(power, abs=0.05)


@pytest.mark.slow
def test_no_rate_removes_the_order_of_blocks(slopes, monkeypatch):
    monkeypatch.setattr(slopes, "BATCHES", 8)
    row = slopes.same_distance("breast cancer", 3)
    assert row["blocks of sorted batches"]["slope"] == pytest.approx(0.0, abs=0.1)
    assert row["shuffled in every pass"]["slope"] > 2.0
