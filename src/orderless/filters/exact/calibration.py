"""How sure is sure: one temperature per particle, a function of the sums alone.

The Gaussian model's own answer, softmax(f / variance), is far too sure of itself on images. How the
scores f of samples scatter is known from the sums: samples of class c have scores with mean
mu_c = W^T phibar_c + b and, pooled over classes, covariance S = W^T (within-class scatter / n) W.
New samples have slightly worse ones than those that were learned. A ridge regression knows its
leave-one-out predictions, f_-i = f_i - h_i / (1 - h_i) (y_i - f_i) with leverage h; here the mean
leverage stands for all. So scores are drawn from

    f | c ~ Student t with 6 degrees of freedom, location mu_c and scale matrix S

(scores of real data have heavier tails than a Gaussian's), always from the same random numbers, and
the temperature maximises the log-likelihood of the classes they were drawn for. Nothing is kept of
any sample, so what is forgotten leaves no trace here, either.

The temperature never changes which class is the most probable.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .evidence import HeadPosterior
from .line_search import maximize

DEFAULT_SHARPNESS = 1.702  # a logistic with this slope is a normal distribution function
_DEGREES = 6
_MOST_COLUMNS = 128  # as many classes, the most frequent ones, tell the temperature of all


def sharpness(
    head: HeadPosterior, gram: Tensor, moments: Tensor, counts: Tensor, draws: int
) -> float:
    """The factor on f / sqrt(variance) under which new samples are the most probable.

    gram `[M+1, M+1]` (its lower triangle), moments `[K, M+1]` and counts `[K]` of one particle.
    """
    if draws == 0 or len(counts) < 2 or head.mean_leverage == 0:
        return DEFAULT_SHARPNESS
    if len(counts) > _MOST_COLUMNS:
        chosen = counts.argsort(descending=True, stable=True)[:_MOST_COLUMNS].sort().values
    else:
        chosen = torch.arange(len(counts), device=counts.device)
    shares = counts[chosen] / counts[chosen].sum()
    centres, scatter = _scores(head, gram, moments, counts, chosen)
    left_out = head.mean_leverage / (1.0 - head.mean_leverage)
    centres = (1.0 + left_out) * centres - left_out * torch.eye(len(centres)).to(centres)
    values, vectors = torch.linalg.eigh(scatter)
    # The symmetric root: an eigenvector's sign, which is a library's choice, is in it twice.
    root = (1.0 + left_out) * (vectors * values.clamp(min=0.0).sqrt()) @ vectors.T
    places, noise = _draws(draws, len(chosen))
    ends = shares.cumsum(0)[:-1].contiguous()
    labels = torch.searchsorted(ends, places.to(ends), right=True)
    scores = centres[labels] + noise.to(root) @ root
    scores = scores / math.sqrt(head.noise_variance * (1.0 + left_out))

    def log_likelihood(log_sharpness: float) -> float:
        return -cross_entropy(math.exp(log_sharpness) * scores, labels).item()

    # Never surer than the Gaussian model itself, whose logits are f / variance.
    surest = max(-0.5 * math.log(head.noise_variance), -1.0)
    start = min(math.log(DEFAULT_SHARPNESS), surest)
    return math.exp(maximize(log_likelihood, start, -3.0, surest, step=0.7, tolerance=1e-3))


def _scores(
    head: HeadPosterior, gram: Tensor, moments: Tensor, counts: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean scores per class `[K, K]` and the pooled covariance within classes `[K, K]`."""
    weight = head.weight[:, chosen]
    count = gram[-1, -1]
    mean = gram[-1, :-1] / count
    lower = gram[:-1, :-1].tril(-1)
    diagonal = gram.diagonal()[:-1].unsqueeze(1)
    product = lower @ weight + lower.T @ weight + diagonal * weight
    total = weight.T @ product / count - torch.outer(mean @ weight, mean @ weight)
    means = moments[:, :-1] / counts.unsqueeze(1) @ weight  # of all classes
    apart = (means - mean @ weight) * (counts / count).sqrt().unsqueeze(1)
    return means[chosen] + head.intercept[chosen], total - apart.T @ apart


@lru_cache(maxsize=4)
def _draws(count: int, width: int) -> tuple[Tensor, Tensor]:
    """Places in (0, 1), evenly spread, and Student t noise `[count, width]`: always the same."""
    generator = torch.Generator().manual_seed(0x0FDE)
    options = {"generator": generator, "dtype": torch.float64}
    normal = torch.randn(count, width, **options)  # type: ignore[call-overload]
    square = torch.randn(count, _DEGREES, **options).square()  # type: ignore[call-overload]
    places = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return places, normal * (_DEGREES / square.sum(1, keepdim=True)).sqrt()
