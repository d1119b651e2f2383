"""scikit-learn estimators: particle filters with `fit`, `partial_fit` and `predict`.

    z = (x - input_mean) / input_scale, clipped to +-4

The exact filter's features lie on a grid, so inputs need a scale. A given `input_scale` depends on
no data: `fit` and `partial_fit`, in any order and batches, give the same bits. Without one, `fit`
takes mean and deviation of every column from its *sorted* values, which no order of rows changes,
and `partial_fit` after it keeps them; a stream that begins with `partial_fit` has scale 1 and mean
0, since a scale from its first batch would depend on which batch came first. The regressor's
targets are treated alike: `target_mean`, `target_scale`.
"""

try:
    import sklearn.base  # noqa: F401
except ImportError as error:
    raise ImportError(
        "ParticleClassifier and ParticleRegressor need scikit-learn 1.6 or newer: "
        "pip install 'scikit-learn>=1.6'"
    ) from error

from .classifier import ParticleClassifier
from .regressor import ParticleRegressor

__all__ = ["ParticleClassifier", "ParticleRegressor"]
