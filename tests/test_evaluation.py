"""Test, then train: against a plain loop."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from tests.exact.toys import blobs, maps

import orderless as ol


def test_every_batch_is_predicted_before_it_is_learned() -> None:
    x, y = blobs(200)
    rb, plain = (ol.ExactHead(maps(), classes=10) for _ in range(2))
    batches = list(zip(x.split(30), y.split(30), strict=True))
    result = ol.prequential(rb, batches)
    right = []
    for i, (inputs, labels) in enumerate(batches):
        if i > 0:
            right.append(int((plain.predict(inputs).argmax(1) == labels).sum()))
        plain.update(inputs, labels)
    sizes = [30, 30, 30, 30, 30, 20]
    assert result.right.tolist() == right and result.sizes.tolist() == sizes
    assert result.samples.tolist() == [30, 60, 90, 120, 150, 180]
    assert result.accuracy == sum(right) / 170 == result.curve[-1]
    expected = [
        sum(right[max(0, t - 1) : t + 1]) / sum(sizes[max(0, t - 1) : t + 1]) for t in range(6)
    ]
    np.testing.assert_allclose(result.recent(2), expected)
    assert torch.equal(rb.predict(x), plain.predict(x))  # it has learned all of it


def test_a_learner_of_scikit_learn_and_one_with_labels_of_text() -> None:
    x, y = blobs(200)
    names = np.array([f"class {label}" for label in y.tolist()])
    halves = [(x[:100].numpy(), names[:100]), (x[100:].numpy(), names[100:])]

    class Known(SGDClassifier):
        def partial_fit(self, X, y):
            return super().partial_fit(X, y, classes=np.unique(names))

    assert ol.prequential(Known(random_state=0), halves).accuracy > 0.5
    assert ol.prequential(ol.ExactClassifier(random_state=0), halves).accuracy > 0.5


class Odd:
    """Answers always three zeros."""

    def predict(self, x):
        return np.zeros(3)

    def learn(self, x, y):
        pass


FOUR = np.zeros((4, 1)), np.arange(4)


def judged(learner: object, batches: object) -> Callable[[], object]:
    return lambda: ol.prequential(learner, batches)


MISTAKES = {  # (a call, what is said)
    "no learner": (judged(object(), []), "needs predict"),
    "too few answers": (judged(Odd(), [FOUR] * 2), "4 labels and predictions of shape"),
    "values": (judged(Odd(), [(np.zeros((3, 1)), np.zeros(3))] * 2), "labels, .* got float64"),
    "one pair": (judged(Odd(), FOUR), "iterable of batches"),
    "one list": (judged(Odd(), [*map(torch.from_numpy, FOUR)]), "iterable of batches"),
    "no window": (lambda: ol.prequential(Odd(), []).recent(0), "at least 1, got 0"),
    "one column": (lambda: ol.prequential(Network(1), ONES), r"predictions of shape \(3, 1\)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_learn_or_answers_otherwise_is_told(name):
    call, words = MISTAKES[name]
    with pytest.raises((ValueError, TypeError), match=words):
        call()


ONES = [(torch.ones(3, 4), torch.ones(3, dtype=torch.long))] * 2


class Network:
    """Answers with logits `[B, width]` that require gradients."""

    def __init__(self, width: int) -> None:
        self.weight = torch.ones(4, width, requires_grad=True)

    def predict(self, x):
        return x @ self.weight * torch.arange(self.weight.shape[1])

    def learn(self, x, y):
        pass


def test_predictions_may_require_gradients():
    assert ol.prequential(Network(2), ONES).accuracy == 1.0


def test_a_stream_may_begin_with_one_class() -> None:
    """The classes are not known: after the first batch there is one probability, which is 1."""
    x, y = torch.randn(40, 3), torch.arange(40) // 20
    head = ol.ExactHead(ol.features.RandomReLU(3, 16))
    assert ol.prequential(head, zip(x.split(10), y.split(10), strict=True)).right.tolist()[0] == 10
