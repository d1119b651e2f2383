"""A head on sentence embeddings that arrive in hundreds: the shuffled stream, and sorted by class.

    python lab/studies/embeddings.py [--json FILE]

Banking77 (10,003 + 3,080 sentences, 77 intents) as MiniLM embeddings of length 1. The exact heads
get input_scale = 1 / sqrt(384); SGDClassifier is scikit-learn's, with its default settings and
with the logistic loss. "same bits": whether both streams give the same scores. Processor seconds a
stream.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record import write
from sklearn.linear_model import SGDClassifier

import orderless as ol
from orderless_lab.datasets import load_intents

PORTION = 100
Array = NDArray[Any]


def sentences() -> list[Array]:
    """Embeddings and intents for training, then for testing; computed once, see `cached`."""
    encoder = ol.features.minilm()
    arrays: list[Array] = []
    for part in load_intents("banking77"):
        tokens = encoder.tokenize(part.texts)
        embeddings = ol.features.cached(encoder, tokens).numpy()
        arrays.append(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True))
        arrays.append(np.array(part.labels))
    return arrays


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    x, y, x_test, y_test = sentences()
    orders = np.random.default_rng(0).permutation(len(y)), np.argsort(y, kind="stable")
    rows = []
    print(f"{'':32} shuffled   sorted   same bits   seconds a stream")
    for name in make_heads():
        start = time.process_time()
        shuffled, by_class = [streamed(make_heads()[name], x, y, order) for order in orders]
        seconds = (time.process_time() - start) / 2
        scores = [head.decision_function(x_test) for head in (shuffled, by_class)]
        row = {
            "head": name,
            "shuffled": 100 * shuffled.score(x_test, y_test),
            "sorted": 100 * by_class.score(x_test, y_test),
            "same_bits": bool(np.array_equal(*scores)),
            "seconds": seconds,
        }
        rows.append(row)
        same = "yes" if row["same_bits"] else "no"
        print(f"{name:32} {row['shuffled']:7.1f}% {row['sorted']:7.1f}%   {same:9}   {seconds:.1f}")
    write(given.json, {"samples": len(y), "tests": len(y_test), "rows": rows})


if __name__ == "__main__":
    main()
