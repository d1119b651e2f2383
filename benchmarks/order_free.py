"""Closed-form learners on frozen features, side by side, implemented from their formulas.

    python benchmarks/order_free.py [--data cifar100] [--device cuda] [--methods RanPAC ACIL]
                                    [--json FILE]

All learn from the same features, task by task, in three orders of the tasks: EfficientNet-lite2's
features of CIFAR-100 (20 tasks of five classes), or MiniLM's of `banking77` or `clinc150`. Settings
are those of their papers: RanPAC chooses its ridge from 17 powers of ten on the last fifth of each
task, ACIL has gamma = 0.1, Deep SLDA shrinks by 1e-4, KLDA chooses its bandwidth on a held-out
tenth of the training data. Rows of methods that are not named stay in the file.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, one_hot

import orderless as ol
from orderless.features import RandomReLU

Data = list[tuple[Tensor, Tensor]]  # one task each


class Learner(Protocol):
    def learn(self, x: Tensor, y: Tensor) -> None: ...

    def scores(self, x: Tensor) -> Tensor: ...


def projected(width: int, features: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Random ReLU features, the same for all methods that use them."""
    torch.manual_seed(0)
    return RandomReLU(width, features, bias_scale=0.0, input_limit=8.0).to(device)


class NearestMean:
    """The class whose mean has the smallest angle to the sample."""

    def __init__(self, width: int, classes: int, device: torch.device) -> None:
        self.sums = torch.zeros(classes, width, device=device)

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.sums.index_add_(0, y, x)

    def scores(self, x: Tensor) -> Tensor:
        means = torch.nn.functional.normalize(self.sums, dim=1)
        return x @ means.T


class RanPAC:
    """McDonnell et al. (2023): sums of random ReLU features; the newest task picks the ridge."""

    def __init__(self, width: int, classes: int, device: torch.device, features: int) -> None:
        self.map, self.classes = projected(width, features, device), classes
        self.gram = torch.zeros(features, features, device=device)
        self.moments = torch.zeros(features, classes, device=device)

    def learn(self, x: Tensor, y: Tensor) -> None:
        phi, targets = self.map(x), one_hot(y, self.classes).float()
        self.gram.addmm_(phi.T, phi)
        self.moments.addmm_(phi.T, targets)
        self.newest = phi.double(), targets.double()

    def scores(self, x: Tensor) -> Tensor:
        return self.map(x) @ _solved(self.gram, self.moments, self._ridge())

    def _ridge(self) -> float:
        """The best of 17 powers of ten on the last fifth of the newest task, given the rest.

        In the dual form, phi^T (phi phi^T + ridge I)^-1 Y: a task has fewer samples than features.
        """
        phi, targets = self.newest
        cut = int(0.8 * len(phi))
        values, vectors = torch.linalg.eigh(phi[:cut] @ phi[:cut].T)
        across, inside = phi[cut:] @ phi[:cut].T @ vectors, vectors.T @ targets[:cut]
        ridges = [10.0**k for k in range(-8, 9)]
        inverse = [1.0 / (values.clamp(min=0.0) + ridge) for ridge in ridges]
        losses = [mse_loss(across * each @ inside, targets[cut:]).item() for each in inverse]
        return ridges[losses.index(min(losses))]


def _solved(gram: Tensor, moments: Tensor, ridge: float) -> Tensor:
    matrix = gram.clone()
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        return torch.linalg.solve(matrix, moments)
    return torch.cholesky_solve(moments, factor)


class ACIL:
    """Zhuang et al. (2022): recursive least squares on random ReLU features, float64."""

    def __init__(self, width: int, classes: int, device: torch.device, features: int) -> None:
        self.map, self.classes = projected(width, features, device), classes
        self.inverse = torch.eye(features, dtype=torch.float64, device=device) / 0.1
        self.weight = torch.zeros(features, classes, dtype=torch.float64, device=device)

    def learn(self, x: Tensor, y: Tensor) -> None:
        phi, targets = self.map(x).double(), one_hot(y, self.classes).double()
        across = self.inverse @ phi.T
        inner = phi @ across
        inner.diagonal().add_(1.0)
        self.inverse -= across @ torch.linalg.solve(inner, across.T)
        self.weight += self.inverse @ (phi.T @ (targets - phi @ self.weight))

    def scores(self, x: Tensor) -> Tensor:
        return self.map(x).double() @ self.weight


class DeepSLDA:
    """Hayes and Kanan (2020): running means and one running covariance, sample by sample."""

    def __init__(self, width: int, classes: int, device: torch.device) -> None:
        self.means = torch.zeros(classes, width, device=device)
        self.counts = torch.zeros(classes, device=device)
        self.covariance, self.seen = torch.ones(width, width, device=device), 0

    def learn(self, x: Tensor, y: Tensor) -> None:
        for sample, label in zip(x, y.tolist(), strict=True):
            apart = sample - self.means[label]
            weight = self.seen / (self.seen + 1)
            self.covariance.mul_(weight).addr_(apart, apart, alpha=weight / (self.seen + 1))
            self.counts[label] += 1
            self.means[label] += apart / self.counts[label]
            self.seen += 1

    def scores(self, x: Tensor) -> Tensor:
        shrunk = (1.0 - 1e-4) * self.covariance
        shrunk.diagonal().add_(1e-4)
        weight = torch.linalg.solve(shrunk, self.means.T)
        return x @ weight - 0.5 * (self.means * weight.T).sum(1)


class KLDA:
    """Momeni et al. (2025): random Fourier features, class means, one covariance."""

    def __init__(
        self, width: int, classes: int, device: torch.device, features: int, bandwidth: float
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.frequencies = torch.randn(width, features, generator=generator).to(device)
        self.frequencies *= math.sqrt(2.0 * bandwidth)
        self.phases = (2.0 * math.pi * torch.rand(features, generator=generator)).to(device)
        self.means = torch.zeros(classes, features, device=device)
        self.scatter, self.seen = torch.zeros(features, features, device=device), 0

    def map(self, x: Tensor) -> Tensor:
        scale = math.sqrt(2.0 / len(self.phases))
        return scale * torch.cos(x @ self.frequencies + self.phases)

    def learn(self, x: Tensor, y: Tensor) -> None:
        phi = self.map(x)
        for label in y.unique():
            own = phi[y == label]
            self.means[label] = own.mean(0)  # a class arrives in one task
            self.scatter.addmm_((own - own.mean(0)).T, own - own.mean(0))
        self.seen += len(x)

    def scores(self, x: Tensor) -> Tensor:
        weight = _solved(self.scatter / self.seen, self.means.T, 1e-6)
        return self.map(x) @ weight - 0.5 * (self.means * weight.T).sum(1)


class Exact:
    """This library's filter on the random ReLU features of RanPAC and ACIL."""

    def __init__(self, width: int, classes: int, device: torch.device, features: int) -> None:
        self.filter = ol.ExactHead(projected(width, features, device), classes=classes)  # type: ignore[arg-type]

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.filter.update(x, y)

    def scores(self, x: Tensor) -> Tensor:
        return self.filter.predict(x)


# deletion, merging: what the method's equations allow
ALLOWS = {
    "nearest mean": ("by formula, rounded", "by formula, rounded"),
    "Deep SLDA": ("no", "no"),
    "KLDA": ("of whole classes", "by formula, rounded"),
    "RanPAC": ("no: the ridge", "no: the ridge"),
    "ACIL": ("by formula, rounded", "no"),
    "exact filter": ("exact", "exact"),
}


def bandwidth_of(train: Data, classes: int, device: torch.device, features: int) -> float:
    """The best power of ten times the inverse mean squared distance, on held-out data."""
    held = [torch.arange(len(y), device=device) % 10 == 0 for _, y in train]
    some = torch.cat([x for x, _ in train])[:2000]
    unit = 1.0 / torch.cdist(some, some).square().mean().item()
    right = {}
    for factor in (0.03, 0.1, 0.3, 1.0, 3.0):
        learner = KLDA(train[0][0].shape[1], classes, device, features, factor * unit)
        for (x, y), out in zip(train, held, strict=True):
            learner.learn(x[~out], y[~out])
        pairs = zip(train, held, strict=True)
        right[factor * unit] = sum(
            int((learner.scores(x[out]).argmax(1) == y[out]).sum()) for (x, y), out in pairs
        )
    return max(right, key=right.__getitem__)


def load(which: str, device: torch.device) -> tuple[Data, Data]:
    """Features and labels of all classes, task by task: training and test data."""
    from orderless_lab.methods.learners.exact import backbone_features
    from orderless_lab.scenarios import Intents, Scenario, SplitCIFAR100

    scenario: Scenario
    if which == "cifar100":
        scenario = SplitCIFAR100("class", device=device).mapped(backbone_features("lite2"))
    else:
        scenario = Intents(source=which, device=device)  # type: ignore[arg-type]
    first = [task * scenario.classes_per_task for task in range(len(scenario))]
    pairs = list(zip(scenario.tasks, first, strict=True))
    mixed = [torch.randperm(len(t.y), generator=torch.Generator().manual_seed(0)) for t, _ in pairs]
    train = [(t.x[order], t.y[order] + k) for (t, k), order in zip(pairs, mixed, strict=True)]
    return train, [(t.x_test, t.y_test + k) for t, k in pairs]


def measured(make: Callable[[], Learner], train: Data, x: Tensor, y: Tensor) -> dict[str, object]:
    """Measure a learner on the tasks in three orders."""
    generator = torch.Generator().manual_seed(0)
    orders = [list(range(len(train)))]
    orders += [torch.randperm(len(train), generator=generator).tolist() for _ in range(2)]
    scores, seconds = [], []
    for order in orders:
        learner, start = make(), time.perf_counter()
        for task in order:
            learner.learn(*train[task])
        scores.append(learner.scores(x).cpu())
        seconds.append(time.perf_counter() - start)
        del learner
    answers = [each.argmax(1) for each in scores]
    right = torch.stack([(a == y.cpu()).sum().double() for a in answers])
    return {
        "accuracy": 100 * right.mean().item() / len(y),
        "order_variance": right.var().item() / len(y) ** 2,
        "flipped": max(int((a != b).sum()) for a in answers for b in answers),
        "equal_bits": all(torch.equal(each, scores[0]) for each in scores),
        "seconds": sum(seconds) / len(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", choices=ALLOWS, default=list(ALLOWS))
    parser.add_argument("--features", type=int, default=10_000)
    parser.add_argument("--fourier", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    train, test = load(given.data, device)
    x, y = (torch.cat([pair[k] for pair in test]) for k in (0, 1))
    facts = {"data": given.data, "device": _machine(device), "torch": torch.__version__}
    facts |= {"features": given.features, "fourier": given.fourier, "tests": len(y)}
    rows = _rows(given.json, facts)
    classes = max(int(labels.max()) for _, labels in train) + 1
    size = x.shape[1], classes, device
    bandwidth = 0.0
    if "KLDA" in given.methods:
        bandwidth = bandwidth_of(train, classes, device, given.fourier)
    makers: dict[str, Callable[[], Learner]] = {
        "nearest mean": lambda: NearestMean(*size),
        "Deep SLDA": lambda: DeepSLDA(*size),
        "KLDA": lambda: KLDA(*size, given.fourier, bandwidth),
        "RanPAC": lambda: RanPAC(*size, given.features),
        "ACIL": lambda: ACIL(*size, given.features),
        "exact filter": lambda: Exact(*size, given.features),
    }
    for name in given.methods:
        deletion, merging = ALLOWS[name]
        row = {"method": name, **measured(makers[name], train, x, y)}
        rows[name] = {**row, "deletion": deletion, "merging": merging}
        print(json.dumps(rows[name]), flush=True)
        if given.json:
            ordered = [rows[each] for each in ALLOWS if each in rows]
            given.json.write_text(json.dumps({**facts, "rows": ordered}, indent=1) + "\n")


def _rows(file: Path | None, facts: dict[str, object]) -> dict[object, dict[str, object]]:
    """The rows in the file, by method."""
    if file is None or not file.is_file():
        return {}
    found = json.loads(file.read_text())
    rows = found.pop("rows")
    if found != facts:
        raise SystemExit(f"{file} was measured otherwise: {found}, now {facts}")
    return {row["method"]: row for row in rows}


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return "one CPU thread" if threads == 1 else f"{threads} CPU threads"


if __name__ == "__main__":
    main()
