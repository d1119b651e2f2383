"""Closed-form learners on frozen features, written from their papers' formulas and their code.

Each has `learn(x, y)` for the samples of a task and `scores(x)`; `deletion` and `merging` say what
its equations allow. `order_free.py` compares them.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import orderless as ol

ROUNDED = "by formula, rounded"


class Size(NamedTuple):
    inputs: int
    classes: int
    features: int


class Learner(ABC):
    deletion = "no"  # what the method's equations allow
    merging = "no"

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor) -> None: ...

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor: ...


def random_relu(size: Size) -> ol.features.RandomReLU:
    """Random ReLU features, the same for all methods that use them."""
    torch.manual_seed(0)
    return ol.features.RandomReLU(size.inputs, size.features, bias_scale=0.0, input_limit=8.0)


def ridge_solution(gram: Tensor, moments: Tensor, ridge: float) -> Tensor:
    matrix = gram.clone()
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        return torch.linalg.solve(matrix, moments)
    return torch.cholesky_solve(moments, factor)


class NearestMean(Learner):
    """The class whose mean has the smallest angle to the sample."""

    deletion = merging = ROUNDED

    def __init__(self, size: Size) -> None:
        self.sums = torch.zeros(size.classes, size.inputs)

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.sums.index_add_(0, y, x)

    def scores(self, x: Tensor) -> Tensor:
        return x @ F.normalize(self.sums, dim=1).T


class NCM(Learner):
    """CapyMOA's nearest class mean: running means, Euclidean distance."""

    deletion = merging = ROUNDED

    def __init__(self, size: Size) -> None:
        self.counts = torch.zeros(size.classes)
        self.means = torch.zeros(size.classes, size.inputs)

    def learn(self, x: Tensor, y: Tensor) -> None:
        for rows in torch.arange(len(y)).split(32):
            for label in y[rows].unique():
                new = x[rows][y[rows] == label]
                total = self.counts[label] * self.means[label] + new.sum(0)
                self.counts[label] += len(new)
                self.means[label] = total / self.counts[label]

    def scores(self, x: Tensor) -> Tensor:
        return -torch.cdist(x, self.means)


class CapyMOASLDA(NCM):
    """CapyMOA's SLDA as shipped: it divides the covariance by the number of samples twice, and
    computes a bias that its scores leave out."""

    deletion = "no"
    merging = "no"

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.seen = 0
        self.mean = torch.zeros(size.inputs)
        self.covariance = torch.zeros(size.inputs, size.inputs)

    def learn(self, x: Tensor, y: Tensor) -> None:
        super().learn(x, y)
        for part in x.split(32):
            seen = self.seen + len(part)
            mean = (self.seen * self.mean + part.sum(0)) / seen
            scatter = (part - self.mean).T @ (part - mean)
            self.covariance = (self.seen * self.covariance + scatter) / seen
            self.mean = mean
            self.seen = seen

    def scores(self, x: Tensor) -> Tensor:
        return x @ ridge_solution(self.covariance / self.seen, self.means.T, 1e-6)


class MendedSLDA(CapyMOASLDA):
    """The same with its bias, and with the covariance divided once."""

    def scores(self, x: Tensor) -> Tensor:
        weight = ridge_solution(self.covariance, self.means.T, 1e-6)
        bias = (self.counts / self.seen).log() - 0.5 * (self.means * weight.T).sum(1)
        return x @ weight + bias


class DeepSLDA(Learner):
    """Hayes and Kanan (2020): running means and one running covariance, sample by sample."""

    def __init__(self, size: Size) -> None:
        self.means = torch.zeros(size.classes, size.inputs)
        self.counts = torch.zeros(size.classes)
        self.covariance = torch.ones(size.inputs, size.inputs)
        self.seen = 0

    def learn(self, x: Tensor, y: Tensor) -> None:
        for sample, label in zip(x, y.tolist(), strict=True):
            apart = sample - self.means[label]
            weight = self.seen / (self.seen + 1)
            self.covariance.mul_(weight).addr_(apart, apart, alpha=weight / (self.seen + 1))
            self.counts[label] += 1
            self.means[label] += apart / self.counts[label]
            self.seen += 1

    def scores(self, x: Tensor) -> Tensor:
        weight = ridge_solution((1.0 - 1e-4) * self.covariance, self.means.T, 1e-4)
        return x @ weight - 0.5 * (self.means * weight.T).sum(1)


class ClassMeans(Learner):
    """Means of classes that arrive in one task each, and the scatter around them."""

    def __init__(self, classes: int, features: int) -> None:
        self.means = torch.zeros(classes, features)
        self.scatter = torch.zeros(features, features)
        self.seen = 0

    def add(self, phi: Tensor, y: Tensor) -> None:
        for label in y.unique():
            members = phi[y == label]
            self.means[label] = members.mean(0)
            centred = members - members.mean(0)
            self.scatter.addmm_(centred.T, centred)
        self.seen += len(y)


class KLDA(ClassMeans):
    """Momeni et al. (2025): random Fourier features, class means, one covariance."""

    deletion = "of whole classes"
    merging = ROUNDED

    def __init__(self, size: Size, bandwidth: float) -> None:
        super().__init__(size.classes, size.features)
        generator = torch.Generator().manual_seed(0)
        frequencies = torch.randn(size.inputs, size.features, generator=generator)
        self.frequencies = frequencies * math.sqrt(2.0 * bandwidth)
        self.phases = 2.0 * math.pi * torch.rand(size.features, generator=generator)

    def map(self, x: Tensor) -> Tensor:
        scale = math.sqrt(2.0 / len(self.phases))
        return scale * torch.cos(x @ self.frequencies + self.phases)

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.add(self.map(x), y)

    def scores(self, x: Tensor) -> Tensor:
        weight = ridge_solution(self.scatter / self.seen, self.means.T, 1e-6)
        return self.map(x) @ weight - 0.5 * (self.means * weight.T).sum(1)


class RanPAC(Learner):
    """McDonnell et al. (2023): sums of random ReLU features; the newest task picks the ridge."""

    deletion = "no: the ridge"
    merging = "no: the ridge"

    def __init__(self, size: Size) -> None:
        self.map = random_relu(size)
        self.classes = size.classes
        self.gram = torch.zeros(size.features, size.features)
        self.moments = torch.zeros(size.features, size.classes)

    def learn(self, x: Tensor, y: Tensor) -> None:
        phi = self.map(x)
        targets = F.one_hot(y, self.classes).float()
        self.gram.addmm_(phi.T, phi)
        self.moments.addmm_(phi.T, targets)
        self.newest = phi.double(), targets.double()

    def scores(self, x: Tensor) -> Tensor:
        return self.map(x) @ ridge_solution(self.gram, self.moments, self.ridge())

    def ridge(self) -> float:
        """The best of 17 powers of ten on the last fifth of the newest task, given the rest.

        In the dual form, phi^T (phi phi^T + ridge I)^-1 Y: a task has fewer samples than features.
        """
        phi, targets = self.newest
        cut = int(0.8 * len(phi))
        values, vectors = torch.linalg.eigh(phi[:cut] @ phi[:cut].T)
        across = phi[cut:] @ phi[:cut].T @ vectors
        inside = vectors.T @ targets[:cut]
        losses = {}
        for ridge in [10.0**k for k in range(-8, 9)]:
            inverse = 1.0 / (values.clamp(min=0.0) + ridge)
            losses[ridge] = F.mse_loss(across * inverse @ inside, targets[cut:]).item()
        return min(losses, key=losses.__getitem__)


class ACIL(Learner):
    """Zhuang et al. (2022): recursive least squares on random ReLU features, float64."""

    deletion = ROUNDED
    gamma = 0.1

    def __init__(self, size: Size) -> None:
        self.map = random_relu(size)
        self.classes = size.classes
        self.inverse = torch.eye(size.features, dtype=torch.float64) / self.gamma
        self.weight = torch.zeros(size.features, size.classes, dtype=torch.float64)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """R <- R - R phi^T (I + phi R phi^T)^-1 phi R,   W <- W + R phi^T (Y - phi W)."""
        phi = self.map(x).double()
        targets = F.one_hot(y, self.classes).double()
        across = self.inverse @ phi.T
        inner = phi @ across
        inner.diagonal().add_(1.0)
        self.inverse -= across @ torch.linalg.solve(inner, across.T)
        self.weight += self.inverse @ (phi.T @ (targets - phi @ self.weight))

    def scores(self, x: Tensor) -> Tensor:
        return self.map(x).double() @ self.weight


class GACL(ACIL):
    """Zhuang et al. (2024): a batch may have known and new classes; columns of new ones are 0 until
    then, so the recursion is ACIL's, batch by batch, with a larger ridge."""

    gamma = 100.0

    def learn(self, x: Tensor, y: Tensor) -> None:
        for rows in torch.arange(len(y)).split(100):
            super().learn(x[rows], y[rows])


class AnaCP(ClassMeans):
    """Momeni, Xiao and Liu (2025), without its first-session training of the backbone.

    Three random layers are fitted by ridge regression to the classes' means, moved apart: whitened,
    one added to their singular values. On their mean output a second random layer is fitted to
    features drawn from the classes' means and their common covariance.
    """

    deletion = "by formula but for the drawn features"
    merging = "by formula but for the drawn features"
    heads = 3
    ridge = 100.0
    drawn = 100  # features a class

    def __init__(self, size: Size) -> None:
        super().__init__(size.classes, size.inputs)
        generator = torch.Generator().manual_seed(0)
        shape = (self.heads + 1, size.features, size.inputs)
        *self.first, self.second = torch.randn(shape, generator=generator)
        self.grams = torch.zeros(self.heads, size.features, size.features)
        self.sums = torch.zeros(self.heads, size.features, size.classes)
        self.known: list[int] = []  # in the order of their arrival

    def learn(self, x: Tensor, y: Tensor) -> None:
        x = F.normalize(x, dim=1)
        self.add(x, y)
        self.known += y.unique().tolist()
        targets = F.one_hot(y, len(self.means)).float()
        for head, layer in enumerate(self.first):
            z = F.gelu(x @ layer.T)
            self.grams[head] += z.T @ z
            self.sums[head] += z.T @ targets

    def moved_apart(self, covariance: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(covariance)
        whitening = vectors / (values.clamp(min=0.0) + 1e-8).sqrt() @ vectors.T
        middle = self.means.mean(0)
        u, s, vh = torch.linalg.svd((self.means - middle) @ whitening, full_matrices=False)
        return F.normalize(u * (s + 1.0) @ vh @ whitening + middle, dim=1)

    def projected(self, x: Tensor, thetas: list[Tensor]) -> Tensor:
        outputs = [
            F.normalize(F.gelu(x @ layer.T) @ theta, dim=1)
            for layer, theta in zip(self.first, thetas, strict=True)
        ]
        return torch.stack(outputs).mean(0)

    def scores(self, x: Tensor) -> Tensor:
        covariance = self.scatter / self.seen
        covariance.diagonal().add_(1e-4)
        targets = self.moved_apart(covariance)
        thetas = [
            ridge_solution(gram, sums @ targets, self.ridge)
            for gram, sums in zip(self.grams, self.sums, strict=True)
        ]
        labels = torch.tensor(self.known).repeat_interleave(self.drawn)
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(len(labels), x.shape[1], generator=generator)
        drawn = self.means[labels] + noise @ torch.linalg.cholesky(covariance).T
        hidden = F.gelu(self.projected(drawn, thetas) @ self.second.T)
        moments = hidden.T @ F.one_hot(labels, len(self.means)).float()
        weight = ridge_solution(hidden.T @ hidden, moments, self.ridge)
        x = F.normalize(x, dim=1)
        return F.gelu(self.projected(x, thetas) @ self.second.T) @ weight


class Exact(Learner):
    """This library's exact head on the random ReLU features of RanPAC, ACIL and GACL."""

    deletion = "exact"
    merging = "exact"

    def __init__(self, size: Size) -> None:
        self.head = ol.ExactHead(random_relu(size), classes=size.classes)

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.head.update(x, y)

    def scores(self, x: Tensor) -> Tensor:
        return self.head.predict(x)


METHODS: dict[str, type] = {
    "nearest mean": NearestMean,
    "CapyMOA NCM": NCM,
    "CapyMOA SLDA": CapyMOASLDA,
    "CapyMOA SLDA mended": MendedSLDA,
    "Deep SLDA": DeepSLDA,
    "KLDA": KLDA,
    "RanPAC": RanPAC,
    "ACIL": ACIL,
    "GACL": GACL,
    "AnaCP": AnaCP,
    "exact head": Exact,
}
