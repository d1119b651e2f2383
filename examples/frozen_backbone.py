"""The exact head on a frozen backbone: ten classes, one after another, in two orders.

    python examples/frozen_backbone.py

A small CNN is trained on the digits 0 to 4 and frozen. Then all ten digits arrive class by
class, each sample once. The exact head fits a Gaussian head on the CNN's features. It prints

    exact head        93.8% right
    Adam on the head  27.6% right
    Adam on all       11.6% right
    exact head on the digits that the backbone never saw: 93.8%
    another order of the classes gives the same bits: True

With one backbone, and so one particle, this is analytic continual learning: ACIL (Zhuang et al.
2022) fits a ridge head on frozen features recursively; RanPAC (McDonnell et al. 2023,
arXiv:2307.02251) puts a random projection between a pre-trained backbone and the head. Here the
sums are exact, so the order has no effect. Put your own network into `backbone`.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import orderless as ol
from orderless_lab import datasets


def make_backbone() -> nn.Module:
    first, second = nn.Conv2d(1, 16, 5, stride=2), nn.Conv2d(16, 32, 5, stride=2)
    layers = first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(512, 256), nn.ReLU()
    return nn.Sequential(*layers)


def descend(network: nn.Module, moving: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    optimizer = torch.optim.Adam(moving.parameters(), lr=1e-3)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()


def main() -> dict[str, float]:
    torch.manual_seed(0)
    data = datasets.load_mnist_5k()
    (x, y), (x_test, y_test) = [(x.unsqueeze(1).float() / 255, y.long()) for x, y in data]

    backbone, old = make_backbone(), (y < 5).nonzero()[:, 0]
    epochs = [old[torch.randperm(len(old))] for _ in range(5)]
    teacher = nn.Sequential(backbone, nn.Linear(256, 5))
    descend(teacher, teacher, [(x[at], y[at]) for epoch in epochs for at in epoch.split(32)])

    def exact(digits: list[int]) -> Tensor:
        filter = ol.ExactHead(backbone, classes=10)  # one map: one particle
        for digit in digits:
            filter.update(x[y == digit], y[y == digit])
        return filter.predict(x_test)

    def tuned(everything: bool) -> Tensor:
        network = nn.Sequential(copy.deepcopy(backbone), nn.Linear(256, 10))
        stream = [at for digit in range(10) for at in (y == digit).nonzero()[:, 0].split(32)]
        descend(network, network if everything else network[1], [(x[at], y[at]) for at in stream])
        return network(x_test)

    in_order = exact(list(range(10)))
    answers = {"exact head": in_order, "Adam on the head": tuned(False), "Adam on all": tuned(True)}
    right = {name: (answer.argmax(1) == y_test).float() for name, answer in answers.items()}
    for name, hits in right.items():
        print(f"{name:17s} {100 * hits.mean():.1f}% right")
    unseen = right["exact head"][y_test >= 5].mean()
    print(f"exact head on the digits that the backbone never saw: {100 * unseen:.1f}%")
    same = torch.equal(in_order, exact([3, 9, 0, 5, 1, 8, 2, 7, 6, 4]))
    print(f"another order of the classes gives the same bits: {same}")
    return {name: float(hits.mean()) for name, hits in right.items()} | {"same bits": float(same)}


if __name__ == "__main__":
    torch.set_num_threads(1)  # the fastest for networks this small
    main()
