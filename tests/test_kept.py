"""`KeptSample`: what is kept is a function of the data, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol

SHARE = 1 / 4


def data(count: int = 400) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 0).long()


def fed(x: Tensor, y: Tensor, order: Tensor, size: int) -> ol.KeptSample:
    kept = ol.KeptSample(SHARE)
    for rows in order.split(size):
        kept.add(x[rows], y[rows])
    return kept


def same(a: ol.KeptSample, b: ol.KeptSample) -> bool:
    return all(map(torch.equal, a.samples(), b.samples()))


def test_no_order_and_no_batching_changes_what_is_kept() -> None:
    x, y = data()
    whole = fed(x, y, torch.arange(400), 400)
    for seed, size in ((1, 1), (2, 7), (3, 100)):
        order = torch.randperm(400, generator=torch.Generator().manual_seed(seed))
        assert same(fed(x, y, order, size), whole)
    assert same(fed(x, y, y.argsort(), 10), whole)


def test_the_share_is_kept_and_both_classes_get_theirs() -> None:
    x, y = data(8000)
    kept = fed(x, y, torch.arange(8000), 8000)
    deviation = (8000 * SHARE * (1 - SHARE)) ** 0.5
    assert abs(len(kept) - 8000 * SHARE) < 4 * deviation
    ones = int(kept.samples()[1].sum())
    assert abs(ones - int(y.sum()) * SHARE) < 4 * deviation
    other = ol.KeptSample(SHARE, key="another")
    other.add(x, y)
    both = {*map(tuple, other.samples()[0].tolist())} & {*map(tuple, kept.samples()[0].tolist())}
    assert abs(len(both) - 8000 * SHARE**2) < 4 * (8000 * SHARE**2) ** 0.5  # independent choices
    everything = ol.KeptSample(1)
    everything.add(x, y)
    assert len(everything) == 8000


def test_what_is_kept_are_samples_with_their_own_labels() -> None:
    x, y = data()
    labels = dict(zip(map(tuple, x.tolist()), y.tolist(), strict=True))
    kept_x, kept_y = fed(x, y, torch.arange(400), 50).samples()
    assert [labels[tuple(row)] for row in kept_x.tolist()] == kept_y.tolist()


def test_what_is_forgotten_was_never_there() -> None:
    x, y = data()
    kept = fed(x, y, torch.arange(400), 400)
    kept.forget(x[100:], y[100:])
    assert same(kept, fed(x[:100], y[:100], torch.arange(100), 100))
    before = kept.samples()
    with pytest.raises(ValueError, match="never added"):
        kept.forget(x, y)  # the last 300 are gone already
    assert all(map(torch.equal, kept.samples(), before))
    kept.forget(x[:100], y[:100])
    assert len(kept) == 0
    with pytest.raises(ValueError, match="nothing is kept yet"):
        kept.samples()


def test_equal_samples_count_as_often_as_they_came() -> None:
    x, y = data(50)
    once, twice = fed(x, y, torch.arange(50), 50), fed(x, y, torch.arange(50), 50)
    twice.add(x, y)
    assert len(twice) == 2 * len(once)
    assert torch.equal(twice.samples()[0], once.samples()[0].repeat_interleave(2, dim=0))
    twice.forget(x, y)
    assert same(twice, once)


def test_a_sum_has_the_samples_of_both() -> None:
    x, y = data()
    a, b = (fed(x[part], y[part], torch.arange(200), 50) for part in (slice(200), slice(200, 400)))
    lengths = len(a), len(b)
    assert same(a + b, fed(x, y, torch.arange(400), 400)) and same(b + a, a + b)
    assert (len(a), len(b)) == lengths
    assert same(a + ol.KeptSample(SHARE), a) and same(ol.KeptSample(SHARE) + a, a)
    for other in (ol.KeptSample(0.5), ol.KeptSample(SHARE, key="another")):
        with pytest.raises(ValueError, match="the same share and key"):
            a + other


def test_it_goes_on_from_a_file(tmp_path) -> None:
    x, y = data()
    kept = fed(x[:200], y[:200], torch.arange(200), 200)
    kept.add(x[:20], y[:20])
    ol.save(tmp_path / "kept", kept)
    again = ol.load(tmp_path / "kept", into=ol.KeptSample())
    for each in (kept, again):
        each.add(x[200:], y[200:])
        each.forget(x[:20], y[:20])
    assert same(again, kept) and again.share == SHARE
    ol.save(tmp_path / "none", ol.KeptSample(SHARE))
    assert len(ol.load(tmp_path / "none", into=again)) == 0
    with pytest.raises(ValueError, match="not of a KeptSample"):
        again.load_state_dict({"kind": "ExactHead"})


def test_zeros_have_one_sign() -> None:
    positive, negative = ol.KeptSample(1), ol.KeptSample(1)
    positive.add(torch.zeros(1, 2), torch.zeros(1))
    negative.add(-torch.zeros(1, 2), torch.zeros(1))
    assert [str(each.samples()[0]) for each in (positive, negative)] == ["tensor([[0., 0.]])"] * 2


def test_mistakes_are_sentences() -> None:
    x, y = data(40)
    kept = fed(x, y, torch.arange(40), 10)
    for share in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"share must lie above 0"):
            ol.KeptSample(share)
    with pytest.raises(RuntimeError, match="Expected size 40 but got size 4"):
        kept.add(x, y[:4])
    for other in (x.double(), x[:, :2]):
        before = kept.samples()
        with pytest.raises(ValueError, match=r"one shape and type, got .*float32 \[3\]"):
            kept.add(other, y)
        with pytest.raises(ValueError, match=r"one shape and type, got .*float32 \[3\]"):
            kept + fed(other, y, torch.arange(40), 10)
        assert all(map(torch.equal, kept.samples(), before))
    with pytest.raises(TypeError, match=r"must be tensors, got ndarray and Tensor"):
        kept.add(x.numpy(), y)


def trained(kept: ol.KeptSample) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    x, y = kept.samples()
    for _ in range(20):
        for rows in torch.arange(len(y)).split(16):
            optimizer.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    return network


def test_a_network_trained_on_it_has_the_same_bits_for_every_stream() -> None:
    x, y = data()
    by_class = trained(fed(x, y, y.argsort(), 40))
    one_by_one = trained(fed(x, y, torch.from_numpy(np.random.default_rng(0).permutation(400)), 1))
    pairs = zip(by_class.parameters(), one_by_one.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert float((by_class(x).argmax(1) == y).double().mean()) > 0.9
