"""Does the output side improve a task's precision? A x S against the input side A alone.

    python benchmarks/product_kronecker.py [--seeds 3] [--data DATA] [--out FILE]

SplitMNIST, MLPs 784-400-400, one pass of squared error from a head of zeros, scored on a tenth of
the training data. The product is implemented here without the library's filter. With a task's
weights W_t `[K, d]`, the second moments A_t of its inputs, and the mean S_t of J^T J over samples
(J is the Jacobian of the outputs with respect to the layer's outputs),

    sum_t S_t W A_t + p_0 W = sum_t S_t W_t A_t + p_0 W_0

is solved by conjugate gradients. A damping adds that share of its mean diagonal to S_t. The input
side alone is S_t = I.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orderless_lab.suites import Scenario, SplitMNIST
from orderless_lab.suites.supervised import mlp
from timing import machine

DAMPINGS = (None, 1e-3, 1e-2, 1e-1, 1.0)
STEPS = 200  # largest number of conjugate gradient steps
Factors = list[tuple[Tensor, Tensor, Tensor]]  # (W_t, A_t, S_t) of every layer


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def matrix(layer: nn.Linear) -> Tensor:
    return torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double()


def own_factors(scenario: Scenario, task: int, start: nn.Module, seed: int) -> Factors:
    """The factors of a task that is trained from `start`."""
    network = copy.deepcopy(start)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for x, y in scenario.batches(task, batch_size=128, epochs=1, seed=seed):
        optimizer.zero_grad()
        outputs = network(x)
        target = F.one_hot(y, scenario.outputs)
        (0.5 * (outputs - target).square().sum(1).mean()).backward()
        optimizer.step()
    seen: list[tuple[Tensor, Tensor]] = []
    layers = linear_layers(network)
    for layer in layers:
        layer.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
    sums = [[torch.zeros((), device=scenario.device).double()] * 2 for _ in layers]
    x, _ = scenario.train_set(task)
    for part in x.split(2000):
        seen.clear()
        outputs = network(part)
        for (inputs, _), total in zip(seen, sums, strict=True):
            a = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1).detach().double()
            total[0] = total[0] + a.T @ a
        for column in range(outputs.shape[1]):
            slopes = torch.autograd.grad(
                outputs[:, column].sum(), [out for _, out in seen], retain_graph=True
            )
            for slope, total in zip(slopes, sums, strict=True):
                total[1] = total[1] + slope.double().T @ slope.double() / len(x)
    return [(matrix(layer), a, s) for layer, (a, s) in zip(layers, sums, strict=True)]


def merged(start: nn.Module, tasks: list[Factors], damping: float | None) -> nn.Module:
    """The merged layers; with damping None, of the input side alone."""
    network = copy.deepcopy(start)
    for place, layer in enumerate(linear_layers(network)):
        factors, w_0 = [], matrix(layer)
        for w, a, s in (task[place] for task in tasks):
            eye = torch.eye(len(s), device=s.device, dtype=s.dtype)
            damped = eye if damping is None else s + damping * s.trace() / len(s) * eye
            factors.append((w, a, damped))
        p_0 = 1e-3 * sum(a.diagonal().mean() * s.diagonal().mean() for _, a, s in factors)
        found = solved(factors, p_0, w_0)
        with torch.no_grad():
            layer.weight.copy_(found[:, :-1])
            layer.bias.copy_(found[:, -1])
    return network


def solved(factors: Factors, p_0: Tensor, w_0: Tensor) -> Tensor:
    """W, by conjugate gradients preconditioned with (mean S)^-1 x (sum A)^-1."""

    def apply(w: Tensor) -> Tensor:
        return p_0 * w + sum(s @ w @ a for _, a, s in factors)

    inputs = sum(a for _, a, _ in factors)
    outputs = sum(s for _, _, s in factors) / len(factors)
    inputs.diagonal().add_(p_0 / outputs.diagonal().mean())
    left_side, right_side = torch.linalg.cholesky(outputs), torch.linalg.cholesky(inputs)

    def near(rest: Tensor) -> Tensor:
        return torch.cholesky_solve(torch.cholesky_solve(rest, left_side).T, right_side).T

    target = p_0 * w_0 + sum(s @ w @ a for w, a, s in factors)
    found = w_0.clone()
    rest = target - apply(found)
    way = near(rest)
    size = (rest * way).sum()
    for _ in range(STEPS):
        image = apply(way)
        length = size / (way * image).sum()
        found, rest = found + length * way, rest - length * image
        if rest.norm() < 1e-8 * target.norm():
            break
        step = near(rest)
        size, before = (rest * step).sum(), size
        way = step + size / before * way
    return found


@torch.no_grad()
def right(network: nn.Module, scenario: Scenario) -> float:
    sets = [scenario.test_set(task) for task in range(len(scenario))]
    hits = [(network(x).argmax(1) == y).double().mean() for x, y in sets]
    return round(100 * float(torch.stack(hits).mean()), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare two precisions of a task.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", default=None, help="folder of MNIST")
    parser.add_argument("--source", default="full", help='"embedded" for 5,000 digits')
    parser.add_argument("--out", type=Path, default=Path("product-kronecker.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    points: list[dict] = []
    for seed in range(args.seeds):
        for kind in ("domain", "class"):
            scenario = SplitMNIST(
                kind, root=args.data, source=args.source, validation=0.1, device=args.device
            )
            torch.manual_seed(seed)
            start = mlp(784, 400, scenario.outputs).to(args.device)
            for parameter in start[-1].parameters():
                nn.init.zeros_(parameter)
            tasks = [own_factors(scenario, task, start, seed) for task in range(len(scenario))]
            for damping in DAMPINGS:
                score = right(merged(start, tasks, damping), scenario)
                points.append(
                    {"scenario": kind, "seed": seed, "damping": damping, "accuracy": score}
                )
                print(points[-1], flush=True)
                content = {
                    "kind": "product kronecker",
                    "device": machine(torch.device(args.device)),
                    "points": points,
                }
                args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
