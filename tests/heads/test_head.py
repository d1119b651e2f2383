"""`ol.Head` in Python: raw inputs in, names and values out, and an algebra of data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import orderless as ol
from orderless.errors import UserError
from orderless.heads import Recipe

X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).double() * 7.0 + 50.0
NAMES = ["high" if row[0] > 50.0 else "low" for row in X]
MEAN, SCALE = [50.0] * 3, [7.0] * 3
CLASSES = Recipe("relu", 64, classes=["high", "low"], mean=MEAN, scale=SCALE)
NONE_KEPT = replace(CLASSES, calibration=0)  # the choice of samples depends on raw inputs
VALUES = Recipe("relu", 64, mean=MEAN, scale=SCALE, center=100.0, spread=20.0)


def test_inputs_are_raw_and_scaled_by_the_maps() -> None:
    """So that its exact head gives the same to whoever asks it directly."""
    head = ol.Head.of(NONE_KEPT)
    head.update(X, NAMES)
    right = head.predict(X).argmax(1) == torch.tensor([NAMES[i] == "low" for i in range(200)])
    assert right.double().mean() > 0.95
    assert torch.equal(head.predict(X), head.exact.predict(X))
    assert torch.equal(head.predict(X.tolist()), head.predict(X))
    scaled = (X - 50.0) / 7.0
    maps = ol.Ensemble(lambda: ol.features.RandomReLU(3, 64, bias_scale=0.5), 1, seed=0)
    plain = ol.ExactHead(maps, classes=2, calibration=0)
    plain.update(scaled, torch.tensor([int(name == "low") for name in NAMES]))
    assert torch.equal(head.predict(X), plain.predict(scaled))


def test_values_are_those_of_the_data() -> None:
    head = ol.Head.of(VALUES)
    y = X[:, 0] * 2.0
    head.update(X, y.tolist())
    mean, variance = head.predictive(X)
    assert torch.equal(head.predict(X), mean)
    assert (mean - y).abs().mean() < 1.0 and variance.sqrt().mean() < 2.0
    with pytest.raises(UserError, match="sample 1 has the value 1e"):
        head.update(X[:2], [100.0, 1e6])


def test_heads_are_added_subtracted_and_forget(tmp_path) -> None:
    def content(head: ol.Head) -> bytes:
        head.save(tmp_path / "head")
        return (tmp_path / "head").read_bytes()

    whole, first, rest = (ol.Head.of(CLASSES) for _ in range(3))
    whole.update(X, NAMES)
    first.update(X[:120], NAMES[:120])
    rest.update(X[120:], NAMES[120:])
    assert content(rest + first) == content(whole)
    assert content(whole - first) == content(rest)
    whole.forget(X[:120], NAMES[:120])
    assert content(whole) == content(rest)
    loaded = ol.Head.load(tmp_path / "head")
    assert loaded.recipe == CLASSES and torch.equal(loaded.predict(X), rest.predict(X))
    assert rest.left_out()[1] == loaded.left_out()[1] > 0


def test_a_head_is_published_without_its_ledger(tmp_path) -> None:
    head = ol.Head.of(replace(CLASSES, ledger=True))
    head.update(X, NAMES)
    plain = ol.Head.of(CLASSES)
    plain.update(X, NAMES)
    head.without_ledger().save(tmp_path / "published")
    plain.save(tmp_path / "plain")
    assert (tmp_path / "published").read_bytes() == (tmp_path / "plain").read_bytes()
    again = ol.Head.load(tmp_path / "published")
    assert torch.equal((again + plain).predict(X), (plain + plain).predict(X))
    with pytest.raises(ValueError, match="never learned all of these"):
        head.forget(X[:1] + 1.0, NAMES[:1])  # it still knows


def test_what_does_not_belong_to_a_head_is_refused_by_name() -> None:
    head = ol.Head.of(CLASSES)
    with pytest.raises(UserError, match="the heads have different classes"):
        head + ol.Head.of(VALUES)
    with pytest.raises(UserError, match="sample 0 has the label 'other', which is none of high"):
        head.update(X[:1], ["other"])
