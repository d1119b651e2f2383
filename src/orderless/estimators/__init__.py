"""scikit-learn estimators: particle filters with `fit`, `partial_fit` and `predict`.

    z = (x - input_mean) / input_scale, clipped to +-4

**Scaling and order.** The exact filter's features lie on a grid, so inputs need a scale, and where
the scale comes from decides whether the order of the data can matter:

- Given (`input_scale` a number, or one per column): nothing about it depends on the data. With
  `method="rb"`, `fit`, `partial_fit` in any order, in any batches, all give the same bits.
- `input_scale=None`, `fit`: mean and standard deviation of every column of the data, computed from
  its *sorted* values, so the order of the rows cannot change a bit of them.
- `input_scale=None`, `partial_fit` from the start: scale 1 and mean 0, whatever comes. A scale
  taken from the first batch would make the result depend on which batch came first; one updated
  as data comes would change features that were already summed. So a stream is expected to be
  about standardised (by a `StandardScaler` fitted on other data, by known units), or to be given
  its scale; a warning says when much of it is clipped.
- `partial_fit` after `fit` keeps the scale of `fit`.

The regressor's targets are treated alike: `target_mean`, `target_scale`.
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
