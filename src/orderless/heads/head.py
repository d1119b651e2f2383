"""`Head`: an exact head with the recipe that reads a user's own data, in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .. import distributed
from ..errors import DataError, UserError
from ..exact import ExactHead, Predictive
from ..io import INVALID_STATE, load, save
from .files import Files
from .recipe import Recipe


@dataclass(frozen=True)
class Head:
    """What `orderless fit` writes: a recipe and an exact head whose maps scale their inputs.

    Inputs are raw: rows of the recipe's columns, or images as bytes `[B, 3, size, size]`. Answers
    are names of classes, or values.

    >>> recipe = Recipe("linear", classes=["big", "small"], mean=[5.0, 5.0], scale=[2.0, 2.0])
    >>> monday, tuesday = Head.of(recipe), Head.of(recipe)
    >>> monday.update([[9.0, 8.0], [1.0, 2.0]], ["big", "small"])
    >>> tuesday.update([[8.0, 9.0], [2.0, 1.0]], ["big", "small"])
    >>> both = monday + tuesday
    >>> both.forget([[8.0, 9.0], [2.0, 1.0]], ["big", "small"])
    >>> bool((both.predict([[7.0, 8.0]]) == monday.predict([[7.0, 8.0]])).all())
    True
    """

    recipe: Recipe
    exact: ExactHead

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """A head without data."""
        return cls(recipe, recipe.make_head())

    @classmethod
    def fit(
        cls,
        recipe: Recipe,
        files: Files,
        workers: int | None = None,
        progress: Callable[[float], None] = lambda samples: None,
    ) -> Self:
        """A head with the data of all files, in several processes; see `distributed.fit`."""
        empty = recipe.make_head()
        shards = recipe.portions(files)
        exact = distributed.fit(empty, shards, recipe.read, workers=workers, progress=progress)
        return cls(recipe, exact)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file of `save`."""
        state = load(path)
        if not isinstance(state, dict) or not {"recipe", "head"} <= state.keys():
            raise UserError(
                f"{path} was not written by `orderless fit`: load it in Python with ol.load(path, "
                "into=...), an object made as the one that was saved"
            )
        try:
            head = cls.of(Recipe(**state["recipe"]))
            head.exact.load_state_dict(state["head"])
        except INVALID_STATE as error:
            raise DataError(f"{path} holds no head that can be used here: {error}") from None
        return head

    def save(self, path: str | Path) -> None:
        """Write recipe and head to one file: the same data give the same bytes."""
        save(path, {"recipe": asdict(self.recipe), "head": self.exact.state_dict()})

    def update(self, x: Any, y: Sequence[Any]) -> None:
        """Add samples x with answers y."""
        self.exact.update(torch.as_tensor(x), self.recipe.targets(y))

    def forget(self, x: Any, y: Sequence[Any]) -> None:
        """Remove samples, as if they had never been added; see `ExactHead.forget`."""
        self.exact.forget(torch.as_tensor(x), self.recipe.targets(y))

    def predict(self, x: Any) -> Tensor:
        """The probability of every class `[B, C]`, or the value of every sample `[B]`."""
        return (
            self.predictive(x).mean
            if self.recipe.spread
            else self.exact.predict(torch.as_tensor(x))
        )

    def predictive(self, x: Any) -> Predictive:
        """Mean and variance of the value of every sample `[B]`."""
        mean, variance = self.exact.predictive(torch.as_tensor(x))
        spread = self.recipe.spread
        return Predictive(mean[:, 0] * spread + self.recipe.center, variance[:, 0] * spread**2)

    def left_out(self) -> tuple[int, int]:
        """How many kept samples the head without them predicts rightly, of how many."""
        right = self.exact.solution().left_out
        return (0, 0) if right is None else (int(right.sum()), len(right))

    def noise(self) -> float:
        """The standard deviation of values around the best prediction."""
        variances = [posterior.noise_variance for posterior in self.exact.heads]
        return self.recipe.spread * max(variances, default=0.0) ** 0.5

    def __add__(self, other: Head) -> Self:
        """A head with the data of both. Neither changes."""
        self._check_same(other.recipe)
        return type(self)(self.recipe, self.exact + other.exact)

    def __sub__(self, other: Head) -> Self:
        """A head with the data of this one that are not in the other. Neither changes."""
        self._check_same(other.recipe)
        return type(self)(self.recipe, self.exact - other.exact)

    def _check_same(self, other: Recipe) -> None:
        for name, value in asdict(self.recipe).items():
            theirs = getattr(other, name)
            if value != theirs:
                raise UserError(
                    f"the heads have different {name} ({str(value)[:40]} and {str(theirs)[:40]}): "
                    "fit one with --like the other"
                )
