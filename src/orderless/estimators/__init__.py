"""scikit-learn estimators of the exact head: `fit`, `partial_fit`, `forget` and `predict`.

    z = (x - input_mean) / input_scale

The exact head's features lie on a grid, so inputs need a scale. With a given `input_scale`, `fit`
and `partial_fit` give the same bits for any order and batching. Without one, `fit` computes the
mean and deviation of every column, without an order as well (`ol.ExactScaler`), and a later
`partial_fit` keeps them. A stream that starts with `partial_fit` has mean 0 and scale 1, because a
scale from its first batch would depend on which batch came first. The regressor's targets are
scaled alike: `target_mean`, `target_scale`.
"""

try:
    import sklearn.base  # noqa: F401
except ImportError as error:
    raise ImportError(
        "ExactClassifier and ExactRegressor need scikit-learn 1.6 or newer: "
        "pip install 'scikit-learn>=1.6'"
    ) from error

from .models import ExactClassifier, ExactRegressor

__all__ = ["ExactClassifier", "ExactRegressor"]
