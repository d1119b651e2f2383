"""`KeptSample`: what is kept is a function of the data, and of nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.common import assert_identical, normal
from torch import Tensor, nn

import orderless as ol

SHARE = 1 / 4


def data(count: int = 400) -> tuple[Tensor, Tensor]:
    x = normal(count, 3)
    return x, (x.sum(1) > 0).long()


def fed(x: Tensor, y: Tensor, size: int = 50, **options: object) -> ol.KeptSample:
    kept = ol.KeptSample(options.pop("share", SHARE), **options)
    for batch in zip(x.split(size), y.split(size), strict=True):
        kept.add(*batch)
    return kept


def same(a: ol.KeptSample, b: ol.KeptSample) -> bool:
    return all(map(torch.equal, a.samples(), b.samples()))


def test_no_order_and_no_batching_changes_what_is_kept():
    x, y = data()
    whole = fed(x, y)
    for seed, size in ((1, 1), (2, 7), (3, 400)):
        order = torch.randperm(400, generator=torch.Generator().manual_seed(seed))
        assert same(fed(x[order], y[order], size), whole)
    assert same(fed(x[y.argsort()], y.sort()[0]), whole)


def test_the_share_is_kept_and_both_classes_get_theirs():
    x, y = data(8000)
    kept, other = fed(x, y), fed(x, y, key="another")
    deviation = (8000 * SHARE * (1 - SHARE)) ** 0.5
    assert abs(len(kept) - 8000 * SHARE) < 4 * deviation
    ones = int(kept.samples()[1].sum())
    assert abs(ones - int(y.sum()) * SHARE) < 4 * deviation
    ours, theirs = ({*map(tuple, each.samples()[0].tolist())} for each in (kept, other))
    both = 8000 * SHARE**2
    assert abs(len(ours & theirs) - both) < 4 * both**0.5  # independent choices
    assert len(fed(x, y, share=1)) == 8000


def test_what_is_kept_are_samples_with_their_own_labels():
    x, y = data()
    labels = dict(zip(map(tuple, x.tolist()), y.tolist(), strict=True))
    kept_x, kept_y = fed(x, y).samples()
    assert [labels[tuple(row)] for row in kept_x.tolist()] == kept_y.tolist()


def test_what_is_forgotten_was_never_there():
    x, y = data()
    kept = fed(x, y)
    kept.forget(x[100:], y[100:])
    first = fed(x[:100], y[:100])
    assert same(kept, first)
    with pytest.raises(ValueError, match="never added"):
        kept.forget(x, y)  # the last 300 are gone already
    assert same(kept, first)
    kept.forget(x[:100], y[:100])
    assert len(kept) == 0
    with pytest.raises(ValueError, match="nothing is kept yet"):
        kept.samples()


def test_equal_samples_count_as_often_as_they_came():
    x, y = data(50)
    once, twice = fed(x, y), fed(x, y)
    twice.add(x, y)
    assert len(twice) == 2 * len(once)
    assert torch.equal(twice.samples()[0], once.samples()[0].repeat_interleave(2, dim=0))
    twice.forget(x, y)
    assert same(twice, once)


def test_a_sum_has_the_samples_of_both():
    x, y = data()
    a, b = fed(x[:200], y[:200]), fed(x[200:], y[200:])
    lengths = len(a), len(b)
    assert same(a + b, fed(x, y)) and same(b + a, a + b)
    assert (len(a), len(b)) == lengths
    assert same(a + ol.KeptSample(SHARE), a) and same(ol.KeptSample(SHARE) + a, a)


def test_it_goes_on_from_a_file(tmp_path):
    x, y = data()
    kept = fed(x[:200], y[:200])
    kept.add(x[:20], y[:20])
    ol.save(tmp_path / "kept", kept)
    again = ol.load(tmp_path / "kept", into=ol.KeptSample())
    for each in (kept, again):
        each.add(x[200:], y[200:])
        each.forget(x[:20], y[:20])
    assert same(again, kept) and again.share == SHARE
    ol.save(tmp_path / "none", ol.KeptSample(SHARE))
    assert len(ol.load(tmp_path / "none", into=again)) == 0


def test_zeros_have_one_sign() -> None:
    positive, negative = ol.KeptSample(1), ol.KeptSample(1)
    positive.add(torch.zeros(1, 2), torch.zeros(1))
    negative.add(-torch.zeros(1, 2), torch.zeros(1))
    assert [str(each.samples()[0]) for each in (positive, negative)] == ["tensor([[0., 0.]])"] * 2


X, Y = data(40)
MISTAKES = {
    **{
        f"share {share}": (lambda kept, share=share: ol.KeptSample(share), "share must lie above 0")
        for share in (0, -1, 1.5, float("nan"))
    },
    "few labels": (lambda kept: kept.add(X, Y[:4]), "Expected size 40 but got size 4"),
    "another type": (lambda kept: kept.add(X.double(), Y), r"type, got .*float32 \[3\]"),
    "another shape": (lambda kept: kept.add(X[:, :2], Y), r"one shape and type, got .*"),
    "a sum of types": (lambda kept: kept + fed(X.double(), Y), r"type, got .*float32 \[3\]"),
    "a sum of shapes": (lambda kept: kept + fed(X[:, :2], Y), r"type, got .*float32 \[3\]"),
    "a sum of shares": (lambda kept: kept + fed(X, Y, share=0.5), "the same share and key"),
    "a sum of keys": (lambda kept: kept + fed(X, Y, key="another"), "the same share and key"),
    "an array": (lambda kept: kept.add(X.numpy(), Y), "must be tensors, got ndarray and Tensor"),
    "a state": (lambda kept: kept.load_state_dict({"kind": "ExactHead"}), "not of a KeptSample"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_sentences_and_change_nothing(name):
    mistake, words = MISTAKES[name]
    kept = fed(X, Y)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
        mistake(kept)
    assert same(kept, fed(X, Y))


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


def test_a_network_trained_on_it_has_the_same_bits_for_every_stream():
    x, y = data()
    order = torch.randperm(400)
    by_class = trained(fed(x[y.argsort()], y.sort()[0]))
    one_by_one = trained(fed(x[order], y[order], 1))
    assert_identical(by_class.state_dict(), one_by_one.state_dict())
    assert float((by_class(x).argmax(1) == y).double().mean()) > 0.9
