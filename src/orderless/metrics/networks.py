"""Calibration and disagreement of predictions, and measures of a network's plasticity."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def _predictions(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    probs, given = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    targets = given.astype(np.int64)
    if probs.ndim != 2 or targets.shape != probs.shape[:1] or not len(targets):
        raise ValueError(
            "probabilities must have shape [B, C] and labels [B], got "
            f"{list(probs.shape)} and {list(targets.shape)}"
        )
    if (targets != given).any() or targets.min() < 0 or targets.max() >= probs.shape[1]:
        raise ValueError(f"labels must be integers from 0 to {probs.shape[1] - 1}")
    return probs, targets


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """-mean_b log p[b, y_b], with probabilities ``[B, C]`` and labels ``[B]``, in nats.

    A probability of 0 counts as the smallest normal double: one sure mistake must not make the mean
    infinite.
    """
    probs, targets = _predictions(probabilities, labels)
    chosen = probs[np.arange(len(targets)), targets]
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def ece(probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error over bins (lo, hi] of equal width.

    sum_m |B_m|/B * |accuracy(B_m) - confidence(B_m)|.
    """
    probs, targets = _predictions(probabilities, labels)
    confidence = probs.max(axis=1)
    correct = probs.argmax(axis=1) == targets
    places = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(targets))


def disagreement(predictions: ArrayLike) -> float:
    """Share of samples on which two orders predict different labels, averaged over all pairs.

    ``predictions`` are integer labels ``[O, B]``; NaN with fewer than two orders.
    """
    labels = np.asarray(predictions)
    if labels.ndim != 2 or labels.shape[1] == 0:
        raise ValueError(f"predictions must have shape [order, sample], got {list(labels.shape)}")
    orders = labels.shape[0]
    if orders < 2:
        return float("nan")
    # Counting votes per label costs O(O C B) instead of the O(O^2 B) of comparing all pairs.
    votes = np.stack([(labels == label).sum(axis=0) for label in np.unique(labels)])
    agreeing = (votes * (votes - 1)).sum(axis=0)
    return float(1 - agreeing.mean() / (orders * (orders - 1)))


def dormant_share(activations: ArrayLike, *, threshold: float = 0.01) -> float:
    """Share of units in ``[B, units]`` that are positive on less than ``threshold`` of samples."""
    values = np.asarray(activations)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"activations must have shape [B, units], got {list(values.shape)}")
    return float(((values > 0).mean(axis=0) < threshold).mean())


def effective_rank(features: ArrayLike) -> float:
    """exp(-sum_k p_k log p_k), p_k = s_k / sum s of the singular values of ``[B, D]``; 0 for 0."""
    import torch

    values = np.array(features, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"features must have shape [B, D], got {list(values.shape)}")
    wide = values.shape[0] < values.shape[1]
    # Their squares are the eigenvalues of the smaller Gram matrix: several times faster. torch, as
    # a cell fixes its number of threads; numpy uses all cores, which changes the last digits.
    rows = torch.from_numpy(values)
    squares = torch.linalg.eigvalsh(rows @ rows.T if wide else rows.T @ rows).numpy()
    rounding = squares.max() * len(squares) * np.finfo(np.float64).eps
    singular = np.sqrt(squares[squares > max(rounding, 0.0)])
    if not singular.any():
        return 0.0
    shares = singular / singular.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def mean_abs_weight(weights: Iterable[ArrayLike]) -> float:
    """mean |w| over all entries of all tensors."""
    tensors = [np.abs(np.asarray(tensor, dtype=np.float64)) for tensor in weights]
    count = sum(tensor.size for tensor in tensors)
    if not count:
        raise ValueError("weights hold no numbers")
    return float(sum(tensor.sum() for tensor in tensors) / count)


def area_under_curve(values: ArrayLike, steps: ArrayLike | None = None) -> float:
    """Mean height of a learning curve ``[K]``: its trapezoid area over its length in steps."""
    heights = np.asarray(values, dtype=np.float64)
    places = np.arange(len(heights)) if steps is None else np.asarray(steps, dtype=np.float64)
    if heights.ndim != 1 or places.shape != heights.shape or not len(heights):
        raise ValueError(
            "values and steps must be lists of equal length, got "
            f"{list(heights.shape)} and {list(places.shape)}"
        )
    if len(heights) == 1:
        return float(heights[0])
    if (np.diff(places) <= 0).any():
        raise ValueError("steps must increase")
    return float(np.trapezoid(heights, places) / (places[-1] - places[0]))
