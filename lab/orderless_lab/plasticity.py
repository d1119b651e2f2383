"""Plasticity of networks: units that no longer react, and the effective rank of features."""

import numpy as np
import torch
from numpy.typing import ArrayLike


def dormant_share(activations: ArrayLike, *, threshold: float = 0.01) -> float:
    """Share of units in ``[B, units]`` that are positive on less than ``threshold`` of samples."""
    values = np.asarray(activations)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"activations must have shape [B, units], got {list(values.shape)}")
    return float(((values > 0).mean(axis=0) < threshold).mean())


def effective_rank(features: ArrayLike) -> float:
    """exp(-sum_k p_k log p_k), p_k = s_k / sum s of the singular values of ``[B, D]``; 0 for 0."""
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
