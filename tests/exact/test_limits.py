"""Exact sums at their limits, states and maps that may not mix, odd batches, export."""

from __future__ import annotations

import itertools
import math
import warnings
from fractions import Fraction

import pytest
import torch
from tests.exact.blobs import PROBE, blobs, ensemble, fed, in_order, same_bits, same_state
from torch import Tensor, nn

from orderless.exact import ExactHead
from orderless.exact.ridge import safe_cholesky
from orderless.exact.sums import WORD, ExactSum, HeadSums, Units
from orderless.features import Backbone, RandomReLU

# ---------------------------------------------------------------------- words


def exact_value(words: ExactSum, *index: int) -> Fraction:
    """Python's whole numbers as oracle."""
    high = 0 if words.high is None else int(words.high[index])
    return Fraction(words.low[index].item()) + high * Fraction(WORD * words.unit)


@pytest.mark.parametrize("unit", [1.0, 2.0**-60])
def test_words_near_their_limits_add_up_as_python_integers_do(unit: float) -> None:
    one = torch.ones((), dtype=torch.float64) * unit
    half = WORD / 2
    lows = [0.0, 0.0625, -half, half - 0.0625, 1.0, -half + 0.0625, half / 3 // 1]
    highs = [0, 1, -1, 2**50, -(2**50)]
    pairs = list(itertools.product(lows, highs))
    for sign in (1, -1):
        for (a, b), (c, d) in itertools.product(pairs, pairs):
            left, right = (
                ExactSum(one * low, unit, torch.tensor(high, dtype=torch.float64))
                for low, high in ((a, b), (c, d))
            )
            total = left.plus(right, sign)
            assert exact_value(total) == exact_value(left) + sign * exact_value(right)
            assert -half * unit <= total.low < half * unit


def test_a_number_is_rounded_once_to_whole_units() -> None:
    values = torch.tensor([1.3, -2.5e-18, 3e11, -7.77e4], dtype=torch.float64)
    words = ExactSum.of(values, 2.0**-60)
    for place, value in enumerate(values.tolist()):
        expected = Fraction(round(Fraction(value) * 2**60), 2**60)
        assert exact_value(words, place) == expected


@pytest.mark.parametrize("value", [math.inf, math.nan, 2.0**41])
def test_what_two_words_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="sums must be finite and below 2.2e"):
        ExactSum.of(torch.tensor([1.0, value], dtype=torch.float64), 2.0**-60)


def near(value: float, high: int) -> ExactHead:
    """A head whose sums are close to where words end."""
    rb = ExactHead(nn.Identity(), feature_limit=2.0**16, bits=16, block_size=1)
    rb.update(torch.full((1, 2), 3.0), torch.tensor([0]))
    state = rb.state_dict()
    gram = state["sums"]["gram"]
    gram[0, :2, :2] = torch.full((2, 2), value, dtype=torch.float64).tril()
    carry = torch.zeros_like(gram)
    carry[0, :2, :2] = torch.full((2, 2), float(high), dtype=torch.float64).tril()
    state["sums"] |= {"gram_high": carry}
    rb.load_state_dict(state)
    return rb


@pytest.mark.parametrize("high", [0, 1, 2**27])
def test_sums_near_both_limits_are_those_of_python_integers(high: int) -> None:
    """Features up to 2^16 in units of 1: a sample adds at most 2^32 to a sum."""
    rb = near(WORD / 2 - 5.0, high)
    before = rb.state_dict()
    assert ("gram_high" in before["sums"]) == (high != 0)
    x = torch.tensor([[65536.0, -65535.0], [7.0, 65536.0], [1.0, 1.0]])
    y = torch.zeros(3, dtype=torch.long)
    weights = torch.tensor([16.0, 0.0625, 1.0], dtype=torch.float64)
    for rows in ([0], [1, 2]):
        rb.update(x[rows], y[rows], sample_weight=weights[rows])
    assert rb.sums is not None
    start = Fraction(WORD / 2 - 5.0) + high * int(WORD)
    for i, j in ((0, 0), (1, 0), (1, 1)):
        terms = zip(x[:, i].tolist(), x[:, j].tolist(), weights.tolist(), strict=True)
        expected = start + sum(Fraction(a) * Fraction(b) * Fraction(w) for a, b, w in terms)
        assert exact_value(rb.sums.gram, 0, i, j) == expected
    twice = rb + rb
    assert twice.sums is not None
    assert exact_value(twice.sums.gram, 0, 1, 1) == 2 * expected
    assert same_state((twice - rb).state_dict(), rb.state_dict())
    rb.forget(x.flip(0), y, sample_weight=weights.flip(0))
    assert same_state(before, rb.state_dict())


def test_the_second_word_is_there_only_while_it_is_needed() -> None:
    """2^16 samples at the limit fill the first word; all take the same way as one fed once."""
    rb = ExactHead(nn.Identity(), feature_limit=1.0, block_size=4096)
    x, y = torch.ones(4096, 1), torch.zeros(4096, dtype=torch.long)
    for _ in range(15):
        rb.update(x, y)
    assert "gram_high" not in rb.state_dict()["sums"]
    rb.update(x, y)
    rb.update(x, y)
    assert "gram_high" in rb.state_dict()["sums"]
    assert rb.heads[0].mean.item() == 1.0
    rb.forget(x, y)
    rb.forget(x[:1], y[:1])
    assert "gram_high" not in rb.state_dict()["sums"]


def test_fine_grids_carry_often_and_stay_exact() -> None:
    x, y = blobs(600)
    fine = [ExactHead(ensemble(), bits=20) for _ in range(2)]
    fine[0].update(x.repeat(4, 1), y.repeat(4))
    fine[1].update(x, y, sample_weight=torch.full((600,), 4.0))
    assert same_bits(*fine, PROBE)


def test_a_refused_deletion_of_samples_that_were_never_there_leaves_no_trace() -> None:
    """Sums of squares fall far below 0 on the way: off the diagonal, too, words must be carried."""
    generator = torch.Generator().manual_seed(0)
    odd = 2**20 - 1 - 2 * torch.randint(2000, (1564, 5), generator=generator).double()
    x, y = odd / 2**16, torch.zeros(1564, dtype=torch.long)
    rb = ExactHead(nn.Identity(), bits=20, calibration=0, block_size=512)
    rb.update(x[:64], y[:64])
    before = rb.state_dict()["sums"]
    with pytest.raises(ValueError, match="a sum of squared features would fall below 0"):
        rb.forget(x[64:], y[64:], sample_weight=15 / 16)
    assert same_state(rb.state_dict()["sums"], before)


def test_a_refused_deletion_leaves_no_trace_on_a_fine_grid() -> None:
    """A block of samples is more than fits between two carries there."""
    x = 16.0 - torch.arange(1, 1800, 2, dtype=torch.float64).view(300, 3) / 2**16
    y, weights = torch.arange(300) % 2, torch.full((300,), 15.9375)
    rb = ExactHead(nn.Identity(), bits=20)
    rb.update(x, y, sample_weight=weights)
    before = rb.state_dict()["sums"]
    with pytest.raises(ValueError, match="a column would have fewer than 0 samples"):
        rb.forget(x, torch.zeros_like(y), sample_weight=weights)
    assert torch.equal(rb.state_dict()["sums"]["gram"], before["gram"])


def test_more_samples_than_two_words_hold_are_refused() -> None:
    x, y = blobs(40)
    rb = fed(x, y)
    assert rb.sums is not None
    rb.sums.samples = 2.0**44 - 39
    with pytest.raises(ValueError, match="the limit is 17592186044416"):
        rb.update(x, y)
    with pytest.raises(ValueError, match="the limit is 17592186044416"):
        rb + fed(x, y)
    rb.forget(x[:1], y[:1])
    assert (rb - fed(x[1:2], y[1:2])).samples == 2**44 - 41


# ---------------------------------------------------------------------- states, maps, limits


def test_tiles_of_a_large_matrix_are_the_sums_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randint(-9, 9, (1, 30, 1100), generator=generator).double()
    units = Units(2.0**16, 1.0, 16, True)
    sums = HeadSums.empty(1, 1100, units, torch.tensor([0]), torch.device("cpu"))
    sums.add(features, torch.zeros(30, dtype=torch.long), torch.ones(30, dtype=torch.float64))
    rows = torch.cat([features[0], torch.full((30, 1), 2.0**16)], 1).double()
    gram, moments = sums.of_map(0)
    assert torch.equal(gram.tril(), (rows.T @ rows).tril())
    assert torch.equal(moments[0], rows.sum(0))
    again = HeadSums.from_state(sums.state_dict(), units, torch.device("cpu"))
    assert same_state(again.state_dict(), sums.state_dict())
    assert same_state(again.plus(sums).state_dict(), sums.plus(sums).state_dict())


def test_maps_that_may_differ_in_bits_do_not_merge() -> None:
    x, y = blobs(40)
    body = nn.Linear(12, 5)
    filters = [ExactHead(body, block_size=size) for size in (1, 16)]
    for rb in filters:
        rb.update(x, y)
    with pytest.raises(ValueError, match="in 'blocks of 1' here and in 'blocks of 16' there"):
        filters[0] + filters[1]
    exact = [ExactHead(RandomReLU(12, 5), block_size=size) for size in (1, 16)]
    exact[1].load_state_dict(exact[0].state_dict())
    assert (
        exact[0].grid.fingerprint == exact[1].grid.fingerprint
    )  # blocks do not matter to an exact map

    class Elsewhere(RandomReLU):
        def fingerprint(self, device: torch.device) -> str:
            return f"computed on {self.machine}"

    maps = [Elsewhere(12, 5), Elsewhere(12, 5)]
    maps[1].load_state_dict(maps[0].state_dict())
    for each, name in zip(maps, "ab", strict=True):
        each.machine = name  # type: ignore[assignment]
    with pytest.raises(ValueError, match="in 'computed on a' here and in 'computed on b' there"):
        ExactHead(maps[0]) + ExactHead(maps[1])


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


@pytest.mark.parametrize("factor", [1e-6, 1e-4, 1e6])
def test_features_that_do_not_suit_the_grid_are_told_once_with_a_limit_that_does(
    factor: float,
) -> None:
    x, y = blobs()
    rb = ExactHead(Scaled(factor))
    with pytest.warns(UserWarning, match="set feature_limit=") as told:
        rb.update(x[:150], y[:150])
        rb.update(x[150:], y[150:])
    assert len(told) == 1
    limit = float(str(told[0].message).rpartition("=")[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        better = ExactHead(Scaled(factor), feature_limit=limit)
        better.update(x, y)
    assert (better.predict(x).argmax(1) == y).double().mean() > 0.85


def test_inputs_and_targets_that_round_away_are_told() -> None:
    x, y = blobs()
    with pytest.warns(UserWarning, match="the inputs are so small .* set input_limit="):
        fed(1e-6 * x, y)
    values = ExactHead(nn.Identity(), targets="values")
    with pytest.warns(UserWarning, match="the targets are so small .* set target_limit="):
        values.update(x, 1e-6 * x[:, 0])


# ---------------------------------------------------------------------- odd batches, many classes


def test_single_samples_empty_batches_and_bytes() -> None:
    x, y = blobs()
    rb = fed(x, y)
    for i in range(3):
        rb.update(x[i], y[i])
    assert same_bits(rb, fed(torch.cat([x, x[:3]]), torch.cat([y, y[:3]])), PROBE)
    body = ExactHead(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), classes=2)
    images = torch.randint(0, 9, (10, 1, 2, 2), dtype=torch.uint8)
    body.update(images, torch.arange(10) % 2)
    assert torch.equal(body.predict(images), body.predict(images.float()))
    for each, empty in ((rb, x[:0]), (body, images[:0])):
        assert each.predict(empty).shape == (0, len(each.columns))
        assert each.predictive(empty).mean.shape == (0, len(each.columns))
    with pytest.raises(ValueError, match="x has 0 samples and y has 0"):
        rb.update(x[:0], y[:0])


def test_an_error_names_the_fix() -> None:
    x, y = blobs()
    backbone = nn.Sequential(nn.Linear(x.shape[1], 4), nn.ReLU())
    rb = ExactHead(Backbone(backbone, inputs=x))
    with pytest.raises(ValueError, match=r"pixels as x.float\(\) / 255"):
        rb.update(x.byte(), y)
    with pytest.raises(ValueError, match=r"x.float\(\)"):
        rb.update(x.double(), y)
    with pytest.raises(ValueError, match=r"a single sample is x\[None\]"):
        rb.update(x[:, :1], y)
    with pytest.raises(TypeError, match="number labels that are strings"):
        rb.update(x[:2], ["cat", "dog"])
    with pytest.raises(ValueError, match="a list of shares in the order of the labels"):
        ExactHead(backbone, class_prior={"cat": 0.5, "dog": 0.5})
    with pytest.raises(FloatingPointError, match="never been learned"):
        safe_cholesky(lambda: -torch.eye(3), torch.tensor([0.1]))


def test_thousands_of_classes_have_the_closed_form() -> None:
    """Against a dense one-hot regression; what they cost is in benchmarks/exact.py."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4_000, 8, generator=generator)
    y = torch.randperm(4_000, generator=generator) % 3_000
    rb = ExactHead(RandomReLU(8, 16), prior_precision=2.0, noise_variance=0.5)
    for part in torch.arange(4_000).split(1500):
        rb.update(x[part], y[part])
    features = rb.grid(x)[0].double()
    z = (features - features.mean(0)) / features.var(0, correction=0).mean().sqrt()
    targets = nn.functional.one_hot(y, 3_000).double()
    head = torch.linalg.solve(z.T @ z + torch.eye(16), z.T @ (targets - targets.mean(0)))
    expected = z[:16] @ head + targets.mean(0)
    assert torch.allclose(rb.predictive(x[:16]).mean, expected, atol=1e-9)
    assert rb.predict(x[:16]).shape == (16, 3_000)


# ---------------------------------------------------------------------- export


@pytest.mark.parametrize("across", ["max", "probs"])
def test_the_exported_module_gives_the_filter_s_answers(across: str) -> None:
    rb = in_order((0, 1, 2, 3, 4), across_tasks=across, weights="uniform")
    mean, probabilities = rb.export(), rb.export(probabilities=True)
    assert torch.equal(mean(PROBE), rb.predictive(PROBE).mean)
    assert torch.equal(probabilities(PROBE), rb.predict(PROBE))
    size = {
        name: sum(b.numel() for b in m.buffers()) for name, m in (("m", mean), ("p", probabilities))
    }
    assert size["m"] < size["p"]


@pytest.mark.slow
@pytest.mark.parametrize("probabilities", [False, True])
def test_the_exported_module_passes_through_torch_export(probabilities: bool) -> None:
    x, y = blobs()
    module = fed(x, y, weights="evidence").export(probabilities=probabilities)
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (PROBE,), dynamic_shapes=({0: batch},))
    again = program.module()
    for rows in (PROBE, PROBE[:7]):
        assert torch.allclose(again(rows), module(rows), rtol=0, atol=1e-12)


def test_what_cannot_be_exported_is_told() -> None:
    rb = ExactHead(ensemble(), targets="values")
    with pytest.raises(ValueError, match="has no probabilities"):
        rb.export(probabilities=True)
    with pytest.raises(ValueError, match="nothing to export yet"):
        rb.export()


def test_moving_changes_nothing() -> None:
    x, y = blobs()
    rb = fed(x, y)
    assert same_bits(fed(x, y).to("cpu"), rb, PROBE)
