"""Data added, taken away, weighted and merged: the filter equals one fed once with what remains."""

from __future__ import annotations

import itertools
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.filters.blobs import blobs, ensemble, in_order, regression, same_bits, same_state
from torch import Tensor, nn

import orderless as ol
from orderless.features import RandomReLU
from orderless.filters import RaoBlackwellizedFilter
from orderless.filters.exact.kept import keys_of
from orderless.filters.exact.statistics import HeadStatistics, Units
from orderless.filters.exact.words import WORD, ExactSum

PROBE = blobs(20, seed=1)[0]


def fed(x: Tensor, y: Tensor, weight: Any = None, **options: Any) -> RaoBlackwellizedFilter:
    rb = RaoBlackwellizedFilter(ensemble(), **options)
    rb.update(x, y, sample_weight=weight)
    return rb


# ---------------------------------------------------------------------- any sequence


def random_walk(operations: int, seed: int) -> None:
    """Batches of 1 to 500 samples are added, deleted or moved to another filter and back."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    x, y = blobs(2000, seed)
    x[::97] *= 40.0  # beyond the maps' inputs
    maps = ensemble(3, 12)

    def empty() -> RaoBlackwellizedFilter:
        return RaoBlackwellizedFilter(maps, feature_limit=2.0, calibration=8)

    rb, held = empty(), torch.zeros(len(x), dtype=torch.int64)  # weights in sixteenths
    for _ in range(operations):
        size = min(number(1, 501), number(1, 501))
        rows = torch.randperm(len(x), generator=generator)[:size]
        sixteenths = torch.randint(0, 33, (size,), generator=generator)
        if number(0, 3) == 0:
            sixteenths = torch.full((size,), 16)
        if number(0, 2):
            sixteenths = torch.minimum(sixteenths, held[rows]).neg()
        parts = [(rows, sixteenths)]
        if number(0, 2):
            some = number(1, size + 1)
            parts = list(zip(rows.split(some), sixteenths.split(some), strict=True))
        for part, amount in parts:
            method, weights = (rb.update if amount.sum() > 0 else rb.forget), amount.abs() / 16
            if number(0, 3) == 0:
                other = empty()
                other.update(x[part], y[part], sample_weight=weights)
                rb = rb + other if amount.sum() > 0 else (rb - other if other.samples else rb)
            elif weights.any():
                method(x[part], y[part], sample_weight=weights)
            held[part] += amount
    once = empty()
    kept = held > 0
    for rows in kept.nonzero()[:, 0].split(300):  # weights up to 16: the rest again
        left = held[rows]
        while left.any():
            now = left.clamp(max=256)
            once.update(x[rows], y[rows], sample_weight=now / 16)
            left = left - now
    assert rb.samples == held.sum().item() / 16
    assert rb._statistics is not None and rb._statistics.kept is not None
    assert len(rb._statistics.kept.keys) == int((keys_of(x[kept]) % 8 == 0).sum()) > 100
    assert rb.clipped == once.clipped
    assert same_bits(rb, once, PROBE)


@pytest.mark.filterwarnings("ignore:.*are clipped")
@pytest.mark.parametrize("seed", [0, 1])
def test_additions_deletions_and_merges_leave_no_trace(seed: int) -> None:
    random_walk(60, seed)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*are clipped")
def test_ten_thousand_additions_deletions_and_merges_leave_no_trace() -> None:
    random_walk(10_000, 2)


# ---------------------------------------------------------------------- deletion


def test_what_is_forgotten_was_never_there(tmp_path: Path) -> None:
    x, y = blobs()
    rb = fed(x, y)
    gone = (y == 3) | (torch.arange(300) > 250)
    for rows in gone.nonzero()[:, 0].flip(0).split(7):
        rb.forget(x[rows], y[rows])
    assert (-1, 3) not in rb.columns
    assert same_bits(rb, fed(x[~gone], y[~gone]), PROBE)
    assert same_bits(fed(x, y) - fed(x[gone], y[gone]), rb, PROBE)
    files = [tmp_path / "a", tmp_path / "b"]
    for path, each in zip(files, (rb, fed(x[~gone], y[~gone])), strict=True):
        ol.save(path, each)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_everything_forgotten_is_a_new_filter() -> None:
    x, y = blobs()
    rb, new = fed(x, y, classes=10), RaoBlackwellizedFilter(ensemble(), classes=10)
    rb.forget(x.flip(0), y.flip(0))
    assert same_state(rb.state_dict(), new.state_dict()) and rb.samples == 0 and rb.columns == []
    assert torch.equal(rb.predict(PROBE), new.predict(PROBE))
    assert same_state((fed(x, y) - fed(x, y)).state_dict(), new.state_dict())


def test_tasks_and_values_are_forgotten_alike() -> None:
    x, y = blobs()
    rb = in_order((0, 1, 2, 3, 4))
    mine = y // 2 == 2
    rb.forget(x[mine], y[mine] % 2, task=2)
    assert same_bits(rb, in_order((4, 3, 1, 0)), PROBE)
    x, y = regression()
    values = [RaoBlackwellizedFilter(nn.Identity(), targets="values") for _ in range(2)]
    values[0].update(x, torch.stack([y, 0 * y], 1))
    values[0].forget(x[:20], torch.stack([y[:20], 0 * y[:20]], 1))
    values[1].update(x[20:], torch.stack([y[20:], 0 * y[20:]], 1))
    assert len(values[0].columns) == 2  # of zeros alone, but there
    assert same_bits(*values, x)


def test_what_was_never_there_is_not_forgotten() -> None:
    x, y = blobs(40)
    rb = fed(x, y)
    before, prediction = rb.state_dict(), rb.predict(PROBE)
    strange = blobs(40, seed=5)[0]
    bad = [
        (x, y + 10, "no sample of label 10 is here"),
        (torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), "never all in it"),
        (4 * x, y, "squared features would fall below 0"),
        (x, y.roll(1), "a column would have no samples but some of their features"),
        (x[y == 1][:3].repeat(2, 1), torch.ones(6, dtype=torch.long), "fewer than 0 samples"),
        (strange[y == 2], y[y == 2], "never all in it"),
        (strange, y, "never all in it"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for inputs, labels, message in bad:
            with pytest.raises(ValueError, match=message):
                rb.forget(inputs, labels)
        with pytest.raises(ValueError, match="never all in it"):
            rb - fed(strange, y)
        with pytest.raises(ValueError, match="nothing can be taken"):
            RaoBlackwellizedFilter(ensemble()) - rb
    assert same_state(before, rb.state_dict()) and torch.equal(rb.predict(PROBE), prediction)


def test_clipped_goes_down_again() -> None:
    rb = RaoBlackwellizedFilter(nn.Identity(), feature_limit=2.0)
    x, y = torch.tensor([[1.0, 3.0], [-9.0, 0.5]]), torch.tensor([0, 1])
    with pytest.warns(UserWarning, match="clipped"):
        rb.update(x, y, sample_weight=[1.0, 2.5])
    assert rb.clipped == 3.5
    rb.forget(x[:1], y[:1])
    assert rb.clipped == 2.5


def test_a_sum_of_filters() -> None:
    x, y = blobs()
    thirds = [fed(x[i::3], y[i::3]) for i in range(3)]
    total = sum(thirds)
    assert same_bits(total, fed(x, y), PROBE)
    alone = sum([thirds[0]])
    alone.update(x[:1], y[:1])
    assert thirds[0].samples == 100 and alone.samples == 101
    assert "3 maps, 40 features, 10 columns, 300 samples" in repr(total)


# ---------------------------------------------------------------------- samples that are kept


def test_equal_numbers_have_equal_keys_and_one_in_so_many_is_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (40_000, 2, 6), generator=generator)
    assert torch.equal(keys_of(x), keys_of(x.float())) and torch.equal(
        keys_of(x), keys_of(x.byte())
    )
    assert torch.equal(keys_of(-0.0 * x[:9].double()), keys_of(0 * x[:9]))
    assert len(keys_of(x).unique()) == len(x.flatten(1).unique(dim=0))
    distinct = x.flatten(1).unique(dim=0)
    for share in (2, 16, 31):  # within four standard errors of 1 / share
        count, expected = int((keys_of(distinct) % share == 0).sum()), len(distinct) / share
        assert abs(count - expected) < 4 * expected**0.5


def test_copies_of_a_sample_are_kept_once_and_leave_when_the_last_one_does() -> None:
    x, y = blobs(40)
    rb = fed(x, y, calibration=1)
    rb.update(x[:5], (y[:5] + 1) % 10)  # the same inputs under another label
    rb.update(x[:5], y[:5], sample_weight=torch.full((5,), 2.5))
    assert rb._statistics is not None and rb._statistics.kept is not None
    kept = rb._statistics.kept
    assert len(kept.keys) == 45 and kept.weights.sum() == 57.5 and (kept.keys.diff() >= 0).all()
    rb.forget(x[:5], y[:5], sample_weight=torch.full((5,), 3.5))
    rb.forget(x[:5], (y[:5] + 1) % 10)
    assert same_bits(rb, fed(x[5:], y[5:], calibration=1), PROBE)


def test_filters_that_keep_other_samples_do_not_merge_nor_load() -> None:
    x, y = blobs(40)
    with pytest.raises(ValueError, match="one sample in 2 is kept here and one in 3 there"):
        fed(x, y, calibration=2) + fed(x, y, calibration=3)
    with pytest.raises(ValueError, match="build it with calibration=2"):
        fed(x, y, calibration=3).load_state_dict(fed(x, y, calibration=2).state_dict())


# ---------------------------------------------------------------------- weights


def test_a_whole_weight_is_repetition_to_the_bit() -> None:
    x, y = blobs()
    times = torch.arange(300) % 4
    assert same_bits(
        fed(x, y, times), fed(x.repeat_interleave(times, 0), y.repeat_interleave(times)), PROBE
    )
    quarters = fed(x, y, torch.full((300,), 0.25))
    for _ in range(3):
        quarters.update(x, y, sample_weight=torch.full((300,), 0.25))
    assert same_bits(quarters, fed(x, y), PROBE)


def test_a_weightless_sample_is_none_and_its_class_is_none() -> None:
    x, y = blobs()
    weights = (y != 4).double()
    rb = fed(x, y, weights)
    assert (-1, 4) not in rb.columns and same_bits(rb, fed(x[y != 4], y[y != 4]), PROBE)
    for wrong in (-1.0, 17.0, 0.3, float("nan")):
        with pytest.raises(ValueError, match="multiples of 1/16"):
            rb.update(x[:2], y[:2], sample_weight=[1.0, wrong])
    with pytest.raises(ValueError, match=r"must be \[2\], one per sample, got \(3,\)"):
        rb.update(x[:2], y[:2], sample_weight=[1.0, 1.0, 1.0])


def test_a_uniform_prior_is_what_balanced_weights_give_where_classes_scatter_alike() -> None:
    """Two classes with the same scatter around other means; one comes eight times as often."""
    generator = torch.Generator().manual_seed(0)
    noise = (torch.randn(64, 5, generator=generator, dtype=torch.float64) * 256).round() / 256
    x = torch.cat([noise, noise + 0.5])
    y = torch.arange(2).repeat_interleave(64)
    weights = torch.where(y == 0, 8.0, 1.0)
    filters = [RaoBlackwellizedFilter(nn.Identity(), class_prior=p) for p in (None, "uniform")]
    filters[0].update(x, y, sample_weight=torch.full((128,), 4.5, dtype=torch.float64))
    filters[1].update(x, y, sample_weight=weights)
    balanced, prior = (rb.predictive(x) for rb in filters)
    assert torch.allclose(balanced.mean, prior.mean, atol=1e-6)  # searches end within 1e-5
    filters[1].class_prior = [0.9, 0.1]
    assert (filters[1].predictive(x).mean[:, 0] > prior.mean[:, 0]).all()
    with pytest.raises(ValueError, match="'uniform', shares or None, got 'flat'"):
        filters[1].class_prior = "flat"


def test_a_rare_class_is_found_with_a_uniform_prior() -> None:
    x, y = blobs(4000)
    keep = (y != 9) | (torch.arange(4000) % 100 == 9)
    test, truth = blobs(1000, seed=7)

    def recall(**options: Any) -> float:
        guess = fed(x[keep], y[keep], **options).predict(test).argmax(1)
        return (guess[truth == 9] == 9).double().mean().item()

    assert recall(class_prior="uniform") > recall() + 0.2


# ---------------------------------------------------------------------- words


def exact_value(words: ExactSum, *index: int) -> Fraction:
    """Python's whole numbers as oracle; the unit of these tests is 1."""
    high = 0 if words.high is None else int(words.high[index])
    return Fraction(words.low[index].item()) + high * int(WORD)


def test_words_near_their_limits_add_up_as_python_integers_do() -> None:
    one = torch.ones((), dtype=torch.float64)
    half = WORD / 2
    lows = [0.0, 0.0625, -half, half - 0.0625, 1.0, -half + 0.0625, half / 3 // 1]
    highs = [0, 1, -1, 2**27, -(2**27)]
    pairs = list(itertools.product(lows, highs))
    for sign in (1, -1):
        for (a, b), (c, d) in itertools.product(pairs, pairs):
            left, right = (
                ExactSum(one * low, one, one, torch.tensor(high, dtype=torch.int32))
                for low, high in ((a, b), (c, d))
            )
            total = left.plus(right, sign)
            assert exact_value(total) == exact_value(left) + sign * exact_value(right)
            assert -half <= total.low < half


def near(value: float, high: int, units: Units) -> RaoBlackwellizedFilter:
    """A filter whose sums are close to where words end."""
    rb = RaoBlackwellizedFilter(nn.Identity(), feature_limit=2.0**16, bits=16, block_size=1)
    rb.update(torch.full((1, 2), 3.0), torch.tensor([0]))
    assert rb._statistics is not None and rb.units == units
    words = rb._statistics.gram[0]
    words.low[:2, :2] = value
    carry = torch.zeros_like(words.low, dtype=torch.int32)
    carry[:2, :2] = high
    state = rb.state_dict()
    state["statistics"] |= {"gram": words.low.tril().unsqueeze(0), "gram_carry": carry.unsqueeze(0)}
    rb.load_state_dict(state)
    return rb


@pytest.mark.parametrize("high", [0, 1, 2**27])
def test_sums_near_both_limits_are_those_of_python_integers(high: int) -> None:
    """Features up to 2^16 in units of 1: a sample adds at most 2^32 to a sum."""
    units = Units(1.0, 1.0, 16)
    rb = near(WORD / 2 - 5.0, high, units)
    before = rb.state_dict()
    assert (before["statistics"]["gram_carry"] is None) == (high == 0)
    x = torch.tensor([[65536.0, -65535.0], [7.0, 65536.0], [1.0, 1.0]])
    y = torch.zeros(3, dtype=torch.long)
    weights = torch.tensor([16.0, 0.0625, 1.0], dtype=torch.float64)
    for rows in ([0], [1, 2]):
        rb.update(x[rows], y[rows], sample_weight=weights[rows])
    assert rb._statistics is not None
    start = Fraction(WORD / 2 - 5.0) + high * int(WORD)
    for i, j in ((0, 0), (1, 0), (1, 1)):
        terms = zip(x[:, i].tolist(), x[:, j].tolist(), weights.tolist(), strict=True)
        expected = start + sum(Fraction(a) * Fraction(b) * Fraction(w) for a, b, w in terms)
        assert exact_value(rb._statistics.gram[0], i, j) == expected
    twice = rb + rb
    assert twice._statistics is not None
    assert exact_value(twice._statistics.gram[0], 1, 1) == 2 * expected
    assert same_state((twice - rb).state_dict(), rb.state_dict())
    rb.forget(x.flip(0), y, sample_weight=weights.flip(0))
    assert same_state(before, rb.state_dict())


def test_the_second_word_is_there_only_while_it_is_needed() -> None:
    """2^16 samples at the limit fill the first word; all take the same way as one fed once."""
    rb = RaoBlackwellizedFilter(nn.Identity(), feature_limit=1.0, block_size=4096)
    x, y = torch.ones(4096, 1), torch.zeros(4096, dtype=torch.long)
    for _ in range(15):
        rb.update(x, y)
    assert rb.state_dict()["statistics"]["gram_carry"] is None
    rb.update(x, y)
    rb.update(x, y)
    assert rb.state_dict()["statistics"]["gram_carry"] is not None
    assert rb.heads[0].mean.item() == 1.0
    rb.forget(x, y)
    rb.forget(x[:1], y[:1])
    assert rb.state_dict()["statistics"]["gram_carry"] is None


def test_fine_grids_carry_often_and_stay_exact() -> None:
    x, y = blobs(600)
    fine = [RaoBlackwellizedFilter(ensemble(), bits=20) for _ in range(2)]
    fine[0].update(x.repeat(4, 1), y.repeat(4))
    fine[1].update(x, y, sample_weight=torch.full((600,), 4.0))
    assert same_bits(*fine, PROBE)


def test_more_samples_than_two_words_hold_are_refused() -> None:
    x, y = blobs(40)
    rb = fed(x, y)
    assert rb._statistics is not None
    rb._statistics.samples = 2.0**44 - 39
    with pytest.raises(ValueError, match="the limit is 17592186044416"):
        rb.update(x, y)


# ---------------------------------------------------------------------- states, maps, limits


def test_a_state_of_version_0_1_loads_with_its_sums() -> None:
    """There: whole symmetric matrices, no carries, a calibration sample of another kind."""
    x, y = blobs()
    rb = fed(x, y, calibration=0)
    state = rb.state_dict()
    sums = state["statistics"]
    gram = sums["gram"] + sums["gram"].tril(-1).mT
    old = {name: sums[name] for name in ("moments", "squares", "columns", "samples", "clipped")}
    again = RaoBlackwellizedFilter(ensemble(seed=3))
    sample = {"hashes": torch.zeros(2), "columns": torch.zeros(2, 2)}
    del state["calibration"]
    again.load_state_dict({**state, "statistics": {**old, "gram": gram}, "sample": sample})
    assert torch.equal(again.predict(PROBE), rb.predict(PROBE))
    for each in (again, rb):
        each.forget(x[:50], y[:50])
        each.update(x[:25], y[:25])
    assert same_state(again.state_dict()["statistics"], rb.state_dict()["statistics"])
    # what was there before is not kept, so nothing is, merged with others or not
    both = again + fed(x, y)
    assert both._statistics is not None and both._statistics.kept is None


def test_tiles_of_a_large_matrix_are_the_sums_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randint(-9, 9, (1, 30, 1100), generator=generator).double()
    sums = HeadStatistics.empty(1, 1100, Units(1.0, 1.0, 16), torch.device("cpu"))
    sums = sums.with_columns(torch.tensor([0]))
    sums.add(features, torch.zeros(30, dtype=torch.long), None, 1)
    rows = torch.cat([features[0], torch.ones(30, 1)], 1)
    assert torch.equal(sums.gram[0].low.tril(), (rows.T @ rows).tril())
    state = sums.state_dict()
    again = HeadStatistics.from_state(state, sums.units, torch.device("cpu"))
    assert torch.equal(again.gram[0].low, sums.gram[0].low)


def test_maps_that_may_differ_in_bits_do_not_merge() -> None:
    x, y = blobs(40)
    body = nn.Linear(12, 5)
    filters = [RaoBlackwellizedFilter(body, block_size=size) for size in (1, 16)]
    for rb in filters:
        rb.update(x, y)
    with pytest.raises(ValueError, match="in 'blocks of 1' here and in 'blocks of 16' there"):
        filters[0] + filters[1]
    exact = [RaoBlackwellizedFilter(RandomReLU(12, 5), block_size=size) for size in (1, 16)]
    exact[1].load_state_dict(exact[0].state_dict())
    assert exact[0].fingerprint == exact[1].fingerprint  # blocks do not matter to an exact map

    class Elsewhere(RandomReLU):
        def fingerprint(self, device: torch.device) -> str:
            return f"computed on {self.machine}"

    maps = [Elsewhere(12, 5), Elsewhere(12, 5)]
    maps[1].load_state_dict(maps[0].state_dict())
    for each, name in zip(maps, "ab", strict=True):
        each.machine = name  # type: ignore[assignment]
    with pytest.raises(ValueError, match="in 'computed on a' here and in 'computed on b' there"):
        RaoBlackwellizedFilter(maps[0]) + RaoBlackwellizedFilter(maps[1])


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
    rb = RaoBlackwellizedFilter(Scaled(factor))
    with pytest.warns(UserWarning, match="set feature_limit=") as told:
        rb.update(x[:150], y[:150])
        rb.update(x[150:], y[150:])
    assert len(told) == 1
    limit = float(str(told[0].message).rpartition("=")[2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        better = RaoBlackwellizedFilter(Scaled(factor), feature_limit=limit)
        better.update(x, y)
    assert (better.predict(x).argmax(1) == y).double().mean() > 0.85


def test_inputs_and_targets_that_round_away_are_told() -> None:
    x, y = blobs()
    with pytest.warns(UserWarning, match="the inputs are so small .* set input_limit="):
        fed(1e-6 * x, y)
    values = RaoBlackwellizedFilter(nn.Identity(), targets="values")
    with pytest.warns(UserWarning, match="the targets are so small .* set target_limit="):
        values.update(x, 1e-6 * x[:, 0])


# ---------------------------------------------------------------------- odd batches, many classes


def test_single_samples_empty_batches_and_bytes() -> None:
    x, y = blobs()
    rb = fed(x, y)
    for i in range(3):
        rb.update(x[i], y[i])
    assert same_bits(rb, fed(torch.cat([x, x[:3]]), torch.cat([y, y[:3]])), PROBE)
    body = RaoBlackwellizedFilter(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), classes=2)
    images = torch.randint(0, 9, (10, 1, 2, 2), dtype=torch.uint8)
    body.update(images, torch.arange(10) % 2)
    assert torch.equal(body.predict(images), body.predict(images.float()))
    for each, empty in ((rb, x[:0]), (body, images[:0])):
        assert each.predict(empty).shape == (0, len(each.columns))
        assert each.predictive(empty).mean.shape == (0, len(each.columns))
    with pytest.raises(ValueError, match="x has 0 samples and y has 0"):
        rb.update(x[:0], y[:0])


def test_thousands_of_classes_have_the_closed_form() -> None:
    """Against a dense one-hot regression; what they cost is in benchmarks/exact.py."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4_000, 8, generator=generator)
    y = torch.randperm(4_000, generator=generator) % 3_000
    rb = RaoBlackwellizedFilter(RandomReLU(8, 16), prior_precision=2.0, noise_variance=0.5)
    for part in torch.arange(4_000).split(1500):
        rb.update(x[part], y[part])
    features = rb.grid(x)[0].double()
    z = (features - features.mean(0)) / features.std(0, correction=0)
    targets = nn.functional.one_hot(y, 3_000).double()
    head = torch.linalg.solve(z.T @ z + torch.eye(16), z.T @ (targets - targets.mean(0)))
    expected = z[:16] @ head + targets.mean(0)
    assert torch.allclose(rb.predictive(x[:16]).mean, expected, atol=1e-9)
    assert rb.predict(x[:16]).shape == (16, 3_000)


# ---------------------------------------------------------------------- export, novelty


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
    module = fed(x, y, weights="tempered").export(probabilities=probabilities)
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (PROBE,), dynamic_shapes=({0: batch},))
    again = program.module()
    for rows in (PROBE, PROBE[:7]):
        assert torch.allclose(again(rows), module(rows), rtol=0, atol=1e-12)


def test_what_cannot_be_exported_is_told() -> None:
    rb = RaoBlackwellizedFilter(ensemble(), targets="values")
    with pytest.raises(ValueError, match="has no probabilities"):
        rb.export(probabilities=True)
    with pytest.raises(ValueError, match="nothing to export yet"):
        rb.export()


@pytest.mark.slow
def test_novelty_tells_held_out_digits_better_than_the_largest_probability() -> None:
    """AUROC, three digits held out of the data at a time, by counting pairs."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.tensor(data.data / 16).float(), torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]

    def auroc(scores: Tensor, strange: Tensor) -> float:
        pairs = scores[strange].unsqueeze(1) - scores[~strange]
        return ((pairs > 0).double() + 0.5 * (pairs == 0)).mean().item()

    areas = []
    for held in ([1, 4, 6], [0, 1, 2], [3, 5, 6]):
        known = ~torch.isin(y, torch.tensor(held))
        maps = ol.Ensemble(lambda: RandomReLU(64, 200, bias_scale=0.3), 2, seed=0)
        rb = RaoBlackwellizedFilter(maps, weights="uniform", classes=10)
        rb.update(x[:1200][known[:1200]], y[:1200][known[:1200]])
        test, strange = x[1200:], ~known[1200:]
        areas.append((auroc(rb.novelty(test), strange), auroc(-rb.predict(test).amax(1), strange)))
    novelty, largest = torch.tensor(areas).mean(0).tolist()
    assert novelty > largest and novelty > 0.9


def test_moving_changes_nothing() -> None:
    x, y = blobs()
    rb = fed(x, y)
    assert same_bits(fed(x, y).to("cpu"), rb, PROBE)
