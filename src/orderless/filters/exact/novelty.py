"""How unlike the data a sample is, from the same sums as everything else.

Two parts, each about 1 on average over the data: the leverage of its features, over the mean
leverage, and for classes how far its outputs f are from those of any class,

    min_c |f - e_c|^2 / (K sigma^2).
"""

from torch import Tensor

from .evidence import HeadPosterior


def novelty(head: HeadPosterior, features: Tensor, classes: bool) -> Tensor:
    """One particle's view of features `[B, M]`: `[B]`, larger is stranger."""
    strangeness = head.leverage(features) / max(head.mean_leverage, 1e-12)
    if not classes:
        return strangeness
    outputs = head.outputs(features)
    # |f - e_c|^2 = |f|^2 - 2 f_c + 1 is smallest where f_c is largest
    distance = outputs.square().sum(1) - 2.0 * outputs.amax(1) + 1.0
    return strangeness + distance / (outputs.shape[1] * head.noise_variance)
