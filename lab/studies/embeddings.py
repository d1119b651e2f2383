"""A head on sentence embeddings that arrive in hundreds: the shuffled stream, and sorted by class.

    python lab/studies/embeddings.py

Banking77 (10,003 + 3,080 sentences, 77 intents) as MiniLM embeddings of length 1. The exact heads
get input_scale = 1 / sqrt(384); SGDClassifier is scikit-learn's, with its default settings and
with the logistic loss. "same bits": whether both streams give the same probabilities.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import SGDClassifier

import orderless as ol
from orderless_lab import scenarios

PORTION = 100
Array = NDArray[Any]


def sentences() -> list[Array]:
    """Embeddings and intents for training, then for testing; computed once, see `cached`."""
    encoder = ol.features.minilm()
    found: list[Array] = []
    for part in scenarios.load_intents("banking77"):
        tokens = encoder.tokenize(part.texts)
        embeddings = ol.features.cached(encoder, tokens).numpy()
        found += [embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)]
        found += [np.array(part.labels)]
    return found


def make_heads() -> dict[str, Any]:
    scale = {"input_scale": 384**-0.5, "random_state": 0}
    return {
        'ExactClassifier("linear")': ol.ExactClassifier("linear", **scale),
        'ExactClassifier("relu")': ol.ExactClassifier("relu", **scale),
        "SGDClassifier()": SGDClassifier(random_state=0),
        'SGDClassifier(loss="log_loss")': SGDClassifier(loss="log_loss", random_state=0),
    }


def streamed(head: Any, x: Array, y: Array, order: Array) -> Any:
    for start in range(0, len(order), PORTION):
        rows = order[start : start + PORTION]
        head.partial_fit(x[rows], y[rows], classes=np.unique(y))
    return head


def main() -> None:
    x, y, x_test, y_test = sentences()
    orders = np.random.default_rng(0).permutation(len(y)), np.argsort(y, kind="stable")
    print(f"{'':32} shuffled   sorted   same bits   seconds a stream")
    for name in make_heads():
        start = time.perf_counter()
        heads = [streamed(make_heads()[name], x, y, order) for order in orders]
        seconds = (time.perf_counter() - start) / 2
        scores = [100 * head.score(x_test, y_test) for head in heads]
        answers = [head.decision_function(x_test) for head in heads]
        same = "yes" if np.array_equal(*answers) else "no"
        print(f"{name:32} {scores[0]:7.1f}% {scores[1]:7.1f}%   {same:9}   {seconds:.1f}")


if __name__ == "__main__":
    main()
