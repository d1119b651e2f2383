"""Plasticity of networks: units that no longer react, and the effective rank of features."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


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


@torch.no_grad()
def plasticity(seen: Tensor, weights: list[Tensor]) -> dict[str, float]:
    """Dormant units, effective rank and weight size of a network; its last layer's inputs `[B, M]`
    are `seen`."""
    features = seen.double().cpu().numpy()
    whole = bool(np.isfinite(features).all())  # singular values of NaN raise an error
    sizes = [p.abs().sum(dtype=torch.float64) for p in weights]  # on the device: there are millions
    return {
        "dormant": dormant_share(features),
        "effective_rank": effective_rank(features) if whole else float("nan"),
        "mean_abs_weight": float(torch.stack(sizes).sum()) / sum(p.numel() for p in weights),
    }
