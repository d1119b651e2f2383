"""Merging networks that were trained apart: to what should the prior pull?

    python lab/studies/merging.py [--widths 400] [--blocks 5] [--seeds 2] [--device cpu]
        [--json FILE]

Every block of the data trains its own network from one start W_0; a layer's merged weights are

    W = (p_0 I + sum_t G_t)^-1 (p_0 A + sum_t G_t W_t),    G_t = sum a a^T over the layer's inputs

with p_0 = `ratio` times the mean of the diagonal of sum_t G_t. The anchor A is W_0 ("start") or
W_0 + sum_t (W_t - W_0) ("sum", as in task arithmetic). Both are functions of sums over the blocks,
so the result has no order.

Blocks are "digits" (tasks of SplitMNIST: different classes) or "random" (alike). Outputs are the
digits ("class") or whether the digit is odd ("domain", as in SplitMNIST). Squared error, SGD, one
pass (or more) in batches of 32, the head starts at zero. Anchor and ratio are chosen on the last
tenth of the training data (`held_out`); `test` is the accuracy on MNIST's test images. Rows that
are in the JSON already are not computed again.
"""

import argparse
import copy
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from record import Cell, Cells, write
from torch import Tensor, nn

from orderless_lab.datasets import load_mnist
from orderless_lab.suites.supervised import mlp

RATIOS = {"1/1000": 1e-3, "1/100": 1e-2, "1/10": 0.1, "1": 1.0}
ANCHORS = ("start", "sum")
BATCH = 32
KEY = ("split", "scenario", "network", "width", "blocks", "passes")  # and the seed

Data = tuple[Tensor, Tensor]
Weights = dict[str, Tensor]  # a matrix [inputs + 1, outputs] for each layer


def cnn(width: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(25 * width, outputs),
    )


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {"mlp": partial(mlp, 784), "cnn": cnn}


def layers_of(network: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    return {n: m for n, m in network.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}


def make_start(make: Callable[[int, int], nn.Module], width: int, outputs: int, seed: int):
    torch.manual_seed(seed)
    network = make(width, outputs)
    *_, head = layers_of(network).values()
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return network


def train(network: nn.Module, data: Data, outputs: int, given: argparse.Namespace, seed: int):
    """SGD over the data, from these weights; returns the network."""
    x, y = data
    *hidden, head = layers_of(network).values()
    groups = [
        {"params": [p for layer in hidden for p in layer.parameters()], "lr": given.hidden_lr},
        {"params": list(head.parameters()), "lr": given.lr},
    ]
    optimizer = torch.optim.SGD(groups)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(given.passes):
        for rows in torch.randperm(len(y), generator=generator).split(BATCH):
            rows = rows.to(y.device)
            target = F.one_hot(y[rows], outputs).float()
            loss = 0.5 * (network(x[rows]) - target).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network


def matrix(layer: nn.Linear | nn.Conv2d) -> Tensor:
    """Weight and bias as `[inputs + 1, outputs]`, float64."""
    weight = layer.weight.detach().flatten(1)
    return torch.cat([weight, layer.bias.detach().unsqueeze(1)], 1).T.double()


def with_matrices(start: nn.Module, weights: Weights) -> nn.Module:
    network = copy.deepcopy(start)
    with torch.no_grad():
        for name, layer in layers_of(network).items():
            layer.weight.copy_(weights[name][:-1].T.reshape(layer.weight.shape))
            layer.bias.copy_(weights[name][-1])
    return network


@torch.no_grad()
def input_moments(network: nn.Module, x: Tensor) -> Weights:
    """G = sum a a^T of every layer, a with a constant 1."""
    grams: Weights = {}

    def add(name: str) -> Callable:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            a = inputs[0]
            if isinstance(layer, nn.Conv2d):
                patches = F.unfold(a, layer.kernel_size, stride=layer.stride)
                a = patches.transpose(1, 2).flatten(0, 1)
            a = torch.cat([a, torch.ones_like(a[:, :1])], 1).double()
            grams[name] = grams.get(name, 0.0) + a.T @ a

        return hook

    hooks = [layer.register_forward_pre_hook(add(n)) for n, layer in layers_of(network).items()]
    for part in x.split(1000):
        network(part)
    for hook in hooks:
        hook.remove()
    return grams


@torch.no_grad()
def accuracy(network: nn.Module, data: Data) -> float:
    x, y = data
    parts = zip(x.split(1000), y.split(1000), strict=True)
    right = sum((network(a).argmax(1) == b).sum() for a, b in parts)
    return 100 * float(right) / len(y)


def merged(start: nn.Module, networks: list[nn.Module], grams: list[Weights]) -> dict:
    """The merged network for every anchor and ratio."""
    found: dict[str, dict[str, Weights]] = {a: {r: {} for r in RATIOS} for a in ANCHORS}
    for name, layer in layers_of(start).items():
        w_0 = matrix(layer)
        each = [matrix(layers_of(network)[name]) for network in networks]
        gram = sum(g[name] for g in grams)
        cross = sum(g[name] @ w for g, w in zip(grams, each, strict=True))
        change = sum(w - w_0 for w in each)
        anchors = {"start": w_0, "sum": w_0 + change}
        values, vectors = torch.linalg.eigh(gram)
        inside = vectors.T @ cross
        level = gram.diagonal().mean()
        for anchor, a in anchors.items():
            pulled = vectors.T @ a
            for ratio, share in RATIOS.items():
                p_0 = share * level
                solution = (inside + p_0 * pulled) / (values.clamp(min=0.0) + p_0).unsqueeze(1)
                found[anchor][ratio][name] = vectors @ solution
    return {a: {r: with_matrices(start, w) for r, w in by.items()} for a, by in found.items()}


def blocks_of(data: Data, digits: Tensor, split: str, count: int) -> list[Data]:
    x, y = data
    if split == "random":
        return list(zip(x.chunk(count), y.chunk(count), strict=True))
    which = digits * count // 10
    return [(x[which == k], y[which == k]) for k in range(count)]


def run(key: Cell, given: argparse.Namespace) -> Cell:
    """Accuracy on held-out and test data of every way to use the blocks."""
    seed = key["seed"]
    (x, digits), (x_test, digits_test) = load_mnist(None)
    shuffled = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    shuffled = shuffled[: given.samples]
    x = x[shuffled].float().div(127.5).sub(1).view(-1, 1, 28, 28).to(given.device)
    x_test = x_test.float().div(127.5).sub(1).view(-1, 1, 28, 28).to(given.device)
    digits = digits[shuffled].to(given.device)
    digits_test = digits_test.to(given.device)
    outputs = 10 if key["scenario"] == "class" else 2
    y = digits % outputs
    cut = len(y) * 9 // 10
    data = x[:cut], y[:cut]
    scored = {"held_out": (x[cut:], y[cut:]), "test": (x_test, digits_test % outputs)}
    blocks = blocks_of(data, digits[:cut], key["split"], key["blocks"])
    start = make_start(NETWORKS[key["network"]], key["width"], outputs, seed).to(given.device)
    networks = [train(copy.deepcopy(start), b, outputs, given, seed) for b in blocks]
    grams = [input_moments(n, b[0]) for n, b in zip(networks, blocks, strict=True)]
    sequential = copy.deepcopy(start)
    for block in blocks:
        train(sequential, block, outputs, given, seed)
    ways = {
        "sequential": sequential,
        "joint": train(copy.deepcopy(start), data, outputs, given, seed),
    }
    for anchor, by_ratio in merged(start, networks, grams).items():
        ways |= {f"{anchor} {ratio}": network for ratio, network in by_ratio.items()}
    return {
        "lr": given.lr,
        "hidden_lr": given.hidden_lr,
        **{part: {w: accuracy(n, d) for w, n in ways.items()} for part, d in scored.items()},
    }


def means(rows: list[Cell]) -> list[Cell]:
    """The rows averaged over seeds; `seed` is the number of seeds."""
    groups: dict[tuple, list[Cell]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
    averaged = []
    for key, own in groups.items():
        mean: Cell = {**dict(zip(KEY, key, strict=True)), "seed": len(own)}
        for part in ("held_out", "test"):
            mean[part] = {w: sum(row[part][w] for row in own) / len(own) for w in own[0][part]}
        averaged.append(mean)
    return averaged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=tuple(NETWORKS), default="mlp")
    parser.add_argument("--splits", nargs="+", default=["digits", "random"])
    parser.add_argument("--scenarios", nargs="+", default=["domain", "class"])
    parser.add_argument("--widths", nargs="+", type=int, default=[400])
    parser.add_argument("--blocks", nargs="+", type=int, default=[5])
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=22_222, help="nine tenths train")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--hidden-lr", type=float, default=0.1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = Cells(given.json, "rows", given.device)
    places = given.widths, given.blocks, given.splits, given.scenarios, range(given.seeds)
    for width, count, split, scenario, seed in itertools.product(*places):
        key = {
            "split": split,
            "scenario": scenario,
            "network": given.network,
            "width": width,
            "blocks": count,
            "passes": given.passes,
            "seed": seed,
        }
        rows.get(key, partial(run, key, given))
    write(given.json, {"means": means(rows.rows), "rows": rows.rows}, given.device)


if __name__ == "__main__":
    main()
