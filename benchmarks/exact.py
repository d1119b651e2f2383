"""The exact head against plain arithmetic and scikit-learn: ratios from one run.

    python benchmarks/exact.py [--device cuda] [--features 2048 10000] [--samples 4096] [--rounds 5]

Sums: `HeadSums.add` (float64 words, lower triangle) against `X.T @ X` in float64, on given
features. Reading: everything between the sums and a head, in units of one Cholesky factorisation,
and against scikit-learn's RidgeCV and BayesianRidge on the same features.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch

import orderless as ol
from orderless.exact import ridge
from orderless.exact.sums import Basis, HeadSums
from timing import machine, medians, print_table

Data = tuple[torch.Tensor, torch.Tensor]


def features_of(samples: int, width: int, device: torch.device) -> torch.Tensor:
    """ReLU features on the grid of the filter: `[1, B, M]`."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(samples, width, generator=generator).relu()
    return ((values * 4096).round() / 4096).to(device).unsqueeze(0)


def summing(width: int, samples: int, device: torch.device, rounds: int) -> list[str]:
    features = features_of(samples, width, device)
    labels = torch.arange(samples, device=device) % 10
    basis = Basis("", 16.0, 16, target_limit=None, calibration=0, ledger=False)
    sums = HeadSums.empty(basis, 1, width, labels.unique())
    weights = torch.ones(samples, dtype=torch.float64, device=device)
    rows = features[0].double()
    gram = torch.zeros(width, width, dtype=torch.float64, device=device)

    block = 4096 if device.type == "cuda" else 1024  # as the filter has them

    def exact() -> None:
        for start in range(0, samples, block):
            rows = slice(start, start + block)
            sums.add(features[:, rows], labels[rows], weights[rows])

    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: gram.addmm_(rows.T, rows),
        "exact": exact,
    }
    times = medians(ways, device, rounds, warmup=1)
    return [f"sums of {samples} samples, M = {width}", *_times(times, "plain", "exact")]


def filter_of(width: int, samples: int, device: torch.device) -> tuple[ol.ExactHead, Data]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 64, generator=generator)
    y = (x[:, :10] + 0.5 * torch.randn(samples, 10, generator=generator)).argmax(1)
    maps = ol.Ensemble(lambda: ol.features.RandomReLU(64, width), 1, device=device)
    head, data = ol.ExactHead(maps), (x.to(device), y.to(device))
    head.update(*data)
    return head, data


def read(head: ol.ExactHead) -> None:
    head.class_prior = None  # clears the cached heads
    head.heads  # noqa: B018


def reading(width: int, samples: int, device: torch.device, rounds: int) -> list[list[str]]:
    head, (x, y) = filter_of(width, samples, device)
    phi = torch.cat([head.grid(part)[0] for part in x.split(1024)]).double()
    matrix = phi.T @ phi
    matrix.diagonal().add_(100.0)
    trials: list[int] = []
    safe_cholesky = ridge.safe_cholesky

    def counted(matrices: torch.Tensor) -> torch.Tensor:
        factors = safe_cholesky(matrices)
        trials.extend([factors.shape[1]] * len(factors))
        return factors

    ridge.safe_cholesky = counted
    read(head)
    ridge.safe_cholesky = safe_cholesky

    def one_more() -> None:
        head.update(x[:1], y[:1])
        head.predict(x[:1])

    ways: dict[str, Callable[[], object]] = {
        "Cholesky": lambda: torch.linalg.cholesky_ex(matrix),
        "read": lambda: read(head),
        "predict": one_more,
    }
    times = medians(ways, device, rounds, warmup=1)
    count = f"{trials.count(width)} factorisations of {width} features"
    return [
        [f"read, in times of one Cholesky ({count})", *_times(times, "Cholesky", "read")],
        [f"predict after one new sample, M = {width}", *_times(times, "Cholesky", "predict")],
    ]


def peers(width: int, samples: int, rounds: int) -> list[list[str]]:
    from sklearn.linear_model import BayesianRidge, RidgeCV

    head, (x, y) = filter_of(width, samples, torch.device("cpu"))
    phi = torch.cat([head.grid(part)[0] for part in x.split(1024)]).double().numpy()
    targets = torch.nn.functional.one_hot(y).double().numpy()
    alphas = [10.0**k for k in range(-4, 6)]
    ways: dict[str, Callable[[], object]] = {
        "read": lambda: read(head),
        "RidgeCV, 10 alphas": lambda: RidgeCV(alphas).fit(phi, targets),
        "BayesianRidge, 1 of 10 outputs": lambda: BayesianRidge().fit(phi, targets[:, 0]),
    }
    times = medians(ways, torch.device("cpu"), rounds, warmup=0)
    names = [name for name in ways if name != "read"]
    return [[f"{name} against read, M = {width}", *_times(times, "read", name)] for name in names]


def many_classes(device: torch.device, rounds: int) -> list[list[str]]:
    x = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0)).to(device)
    y = torch.arange(20_000, device=device) % 10_000
    head = ol.ExactHead(ol.features.RandomReLU(8, 32).to(device))
    head.update(x, y)
    ways: dict[str, Callable[[], object]] = {
        "update(1)": lambda: head.update(x[:1], y[:1]),
        "predict(16)": lambda: head.predict(x[:16]),
    }
    times = medians(ways, device, rounds, warmup=1)
    return [[f"10,000 classes, M = 32: {name}", "", f"{times[name]:.1f}", ""] for name in ways]


def _times(times: dict[str, float], base: str, name: str) -> list[str]:
    return [f"{times[base]:.1f}", f"{times[name]:.1f}", f"{times[name] / times[base]:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--features", type=int, nargs="+", default=[2048])
    parser.add_argument("--read", type=int, nargs="+", default=[1536])
    parser.add_argument("--peers", type=int, nargs="*", default=[512])
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    device = torch.device(given.device)

    def rows() -> Iterator[list[str]]:
        for width in given.features:
            yield summing(width, given.samples, device, given.rounds)
        for width in given.read:
            yield from reading(width, given.samples, device, given.rounds)
        for width in given.peers if device.type == "cpu" else ():
            yield from peers(width, given.samples, min(given.rounds, 2))
        yield from many_classes(device, given.rounds)

    print(machine(device))
    print_table(["what", "base, ms", "ms", "ratio"], rows())


if __name__ == "__main__":
    main()
