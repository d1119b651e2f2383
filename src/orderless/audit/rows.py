"""Audits of scikit-learn estimators: the order of the rows, or of groups of rows, varies."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from .answers import as_array
from .orders import draw_orders, keyed_generator
from .trials import AuditData, Trial

Rows = NDArray[np.int64]
HELD_OUT = 4  # one row of so many is for testing


class RowData(AuditData):
    """Rows X, y; a learner is an estimator, which is cloned for every trial and asked at the end.

    An order arranges the groups, whose rows stay in the order of the data. Without groups the
    training rows as given and in random orders are what an order chooses from. One row of four, of
    every group, is held out for testing.
    """

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        groups: ArrayLike | None,
        orders: int,
        order_seed: int,
    ) -> None:
        from sklearn.base import is_classifier

        X = X.tocsr() if hasattr(X, "tocsr") else X
        self.X = X if hasattr(X, "iloc") or hasattr(X, "indptr") else as_array(X)
        self.y = as_array(y)
        self.grouped = groups is not None
        labels = as_array(groups) if self.grouped else np.full(len(self.y), "all rows")
        if not self.y.shape == labels.shape == self.X.shape[:1]:
            raise ValueError(
                f"y and groups must be [n] for n={self.X.shape[0]} rows of X, got "
                f"{list(self.y.shape)} and {list(labels.shape)}"
            )
        self.classes = np.unique(self.y) if is_classifier(estimator) else None
        names = list(dict.fromkeys(labels.tolist()))  # in the order of the data
        splits = [_split(np.flatnonzero(labels == name), name) for name in names]
        self.blocks = [training for training, _ in splits]
        self.tests = [test for _, test in splits]
        if self.grouped:
            parts = list(map(str, names))
            if len(parts) < 2:
                raise ValueError(f"groups must name at least two groups, got {parts}")
            sequences = draw_orders(len(parts), orders, order_seed)
        else:
            [rows] = self.blocks
            keys = [keyed_generator("rows", order_seed, k) for k in range(1, orders)]
            shuffled = [rows[torch.randperm(len(rows), generator=key).numpy()] for key in keys]
            self.blocks = [rows, *shuffled]
            parts = ["rows as given", *(f"rows in random order {k}" for k in range(1, orders))]
            sequences = [(number,) for number in range(orders)]
        targets = [self._coded(self.y[test]) for test in self.tests]
        content = [self.X, self.y, *self.blocks]
        super().__init__(list(map(str, names)), targets, parts, sequences, content)

    def _coded(self, y: NDArray[Any]) -> NDArray[Any]:
        """Values, or labels as 0, 1, ... and -1 for one that is no class of the data."""
        if self.classes is None:
            return y.astype(np.float64)
        codes = np.searchsorted(self.classes, y).clip(max=len(self.classes) - 1)
        return np.where(self.classes[codes] == y, codes, -1)

    def train(self, trial: Trial, asks: Sequence[int]) -> Iterator[list[NDArray[Any]]]:
        estimator = _seeded(trial.learner, trial.seed)
        blocks = [self.blocks[part] for part in trial.order]
        with trial.failures("while learning"):
            if self.grouped and hasattr(estimator, "partial_fit"):
                known = {} if self.classes is None else {"classes": self.classes}
                for rows in blocks:
                    estimator.partial_fit(self._inputs(rows), self.y[rows], **known)
            else:
                rows = np.concatenate(blocks)
                estimator.fit(self._inputs(rows), self.y[rows])
        for _ in range(asks[-1]):
            with trial.failures("while predicting"):
                given = [as_array(estimator.predict(self._inputs(test))) for test in self.tests]
            yield [self._coded(labels.reshape(-1)) for labels in given]

    def _inputs(self, rows: Rows) -> Any:
        return self.X.iloc[rows] if hasattr(self.X, "iloc") else self.X[rows]


def _split(rows: Rows, name: Any) -> tuple[Rows, Rows]:
    """Training and test rows of a group, each in the order of the data."""
    held_out = len(rows) // HELD_OUT
    if not held_out:
        raise ValueError(f"a group needs at least {HELD_OUT} rows, got {len(rows)} of {name!r}")
    shuffled = torch.randperm(len(rows), generator=keyed_generator("held out")).numpy()
    return rows[np.sort(shuffled[held_out:])], rows[np.sort(shuffled[:held_out])]


def _seeded(estimator: Any, seed: int) -> Any:
    """A clone of the estimator, and of what it is made of, with this `random_state`."""
    from sklearn.base import clone

    copy = clone(estimator)
    names = [name for name in copy.get_params() if name.split("__")[-1] == "random_state"]
    return copy.set_params(**dict.fromkeys(names, seed))
