"""Closed-form learners on frozen features, side by side (their formulas: `peers.py`).

    python lab/studies/order_free.py [--data digits] [--methods RanPAC ACIL] [--json FILE]

All learn from the same features, task by task, in three orders of the tasks: scikit-learn's digits,
MiniLM's sentence features of `banking77` or `clinc150`, or EfficientNet-lite2's of `cifar100` (one
class in a task of five; `--images` of each class for training, a fifth of that for testing).
Accuracy, the labels that two orders give otherwise, whether the scores have the same bits, and
processor seconds an order.

Settings are those of the methods' papers and code: RanPAC chooses its ridge from 17 powers of ten
on the last fifth of each task, ACIL has gamma = 0.1, GACL 100, AnaCP three heads, ridge 100 and 100
drawn features a class, Deep SLDA shrinks by 1e-4, KLDA chooses its bandwidth on a held-out tenth of
the training data. RanPAC, ACIL, GACL and the exact head have the same `--features` random ReLUs,
AnaCP's and KLDA's layers have as many units. Rows that are in the JSON are not computed again.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from peers import KLDA, METHODS, Learner, Size
from record import Cells, orders, write
from sklearn.datasets import load_digits
from torch import Tensor

import orderless as ol
from orderless_lab.suites import Intents, SplitCIFAR100

Data = list[tuple[Tensor, Tensor]]  # one task each
FEATURES = {"digits": 500, "banking77": 2000, "clinc150": 2000, "cifar100": 2000}


def bandwidth_of(train: Data, size: Size) -> float:
    """The best power of ten times the inverse mean squared distance, on held-out data."""
    held = [torch.arange(len(y)) % 10 == 0 for _, y in train]
    some = torch.cat([x for x, _ in train])[:2000]
    unit = 1.0 / torch.cdist(some, some).square().mean().item()
    right = {}
    for factor in (0.03, 0.1, 0.3, 1.0, 3.0):
        learner = KLDA(size, factor * unit)
        for (x, y), out in zip(train, held, strict=True):
            learner.learn(x[~out], y[~out])
        right[factor * unit] = sum(
            int((learner.scores(x[out]).argmax(1) == y[out]).sum())
            for (x, y), out in zip(train, held, strict=True)
        )
    return max(right, key=right.__getitem__)


def digits() -> tuple[Data, Data]:
    """Scikit-learn's digits in five tasks of two; a third for testing."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images).float()[order] / 8 - 1
    y = torch.tensor(labels)[order]
    cut = len(y) * 2 // 3
    return in_five(x[:cut], y[:cut]), in_five(x[cut:], y[cut:])


def in_five(x: Tensor, y: Tensor) -> Data:
    return [(x[y // 2 == k], y[y // 2 == k]) for k in range(5)]


def first_of_each(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    rows = torch.cat([(y == label).nonzero()[:count, 0] for label in y.unique()])
    return x[rows], y[rows]


def load(data: str, images: int) -> tuple[Data, Data]:
    """Features and labels, task by task: training and test data."""
    if data == "digits":
        return digits()
    if data == "cifar100":
        scenario = SplitCIFAR100("class")
        network = ol.features.efficientnet_lite(2, mirror=False)
    else:
        scenario = Intents(source=data)
    train = []
    test = []
    for number, task in enumerate(scenario.tasks):
        first = number * scenario.classes_per_task
        parts = [(task.x, task.y + first), (task.x_test, task.y_test + first)]
        if data == "cifar100":
            counts = images, images // 5
            parts = [first_of_each(*part, n) for part, n in zip(parts, counts, strict=True)]
            parts = [(ol.features.cached(network, x), y) for x, y in parts]
        (x, y), tests = parts
        mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        train.append((x[mixed], y[mixed]))
        test.append(tests)
    return train, test


def measured(name: str, size: Size, train: Data, x: Tensor, y: Tensor) -> dict[str, object]:
    """A learner on the tasks in three orders."""
    make: Callable[[], Learner] = partial(METHODS[name], size)
    if name == "KLDA":
        make = partial(KLDA, size, bandwidth_of(train, size))
    scores = []
    start = time.process_time()
    for order in orders(3, len(train)):
        learner = make()
        for task in order:
            learner.learn(*train[task])
        scores.append(learner.scores(x))
    answers = [s.argmax(1) for s in scores]
    right = torch.stack([(a == y).sum().double() for a in answers])
    return {
        "accuracy": 100 * right.mean().item() / len(y),
        "order_variance": right.var().item() / len(y) ** 2,
        "flipped": max(int((a != b).sum()) for a in answers for b in answers),
        "equal_bits": all(torch.equal(s, scores[0]) for s in scores),
        "deletion": learner.deletion,
        "merging": learner.merging,
        "seconds": (time.process_time() - start) / len(scores),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits", choices=FEATURES)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--features", type=int)
    parser.add_argument("--images", type=int, default=50, help="of each class of cifar100")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    train, test = load(given.data, given.images)
    x, y = (torch.cat([part[k] for part in test]) for k in (0, 1))
    classes = max(int(labels.max()) for _, labels in train) + 1
    size = Size(x.shape[1], classes, given.features or FEATURES[given.data])
    samples = sum(len(labels) for _, labels in train)
    facts = {"data": given.data, "features": size.features, "samples": samples, "tests": len(y)}
    rows = Cells(given.json, "rows")
    for name in given.methods:
        rows.get({"method": name}, partial(measured, name, size, train, x, y))
    write(given.json, {**facts, "rows": rows.rows})


if __name__ == "__main__":
    main()
