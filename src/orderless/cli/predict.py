"""`orderless predict`: apply a head of `orderless fit` to a user's images or tables."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..escaping import csv_cell
from .fit import Data, check
from .options import option, word

if TYPE_CHECKING:
    from torch import Tensor

    from ..distributed.head import Head


def predict(
    head: Annotated[Path, word("A file written by orderless fit.")],
    data: Data,
    out: Annotated[Path | None, option("CSV file [the terminal].")] = None,
    probabilities: Annotated[
        bool, option("Add a column for every class.", name="--probabilities")
    ] = False,
) -> None:
    """Predict one class or value per image or row, and report the accuracy if answers are known.

    Classes have a probability, values a standard deviation.

    Example: orderless predict head.safetensors --data photos --out predictions.csv
    """
    import torch

    from ..distributed.head import Head
    from ..files import check_output, find_files
    from .progress import Countdown

    torch.set_num_threads(1)  # as in fit
    loaded, files = Head.load(head), find_files(data)
    recipe = loaded.recipe
    check(recipe, files)
    if out is not None:
        check_output(out, head, *files.paths)
        out.parent.mkdir(parents=True, exist_ok=True)
    answers = Values(loaded) if recipe.spread else Classes(loaded, probabilities)
    shards = recipe.shards(files)
    with ExitStack() as stack:
        bar = stack.enter_context(Countdown())
        stream = sys.stdout if out is None else stack.enter_context(out.open("w", newline=""))
        writer = csv.writer(stream)
        writer.writerow(["sample", *answers.header])
        for done, shard in enumerate(shards):
            bar.tell(done, len(shards), f"{data}")
            for names, x, labels in recipe.samples(shard):
                for name, row in zip(names, answers.rows(x, labels), strict=True):
                    writer.writerow([csv_cell(name), *row])
        stream.flush()  # a closed pipe is noticed here
        bar.tell(len(shards), len(shards), "done")
    if said := answers.summary():
        typer.echo(said, err=out is None)


class Classes:
    """The most probable class of each sample, its probability, and the accuracy."""

    def __init__(self, head: Head, probabilities: bool) -> None:
        self.head, self.probabilities = head, probabilities
        self.names = [csv_cell(name) for name in head.recipe.classes]
        self.header = ["prediction", "probability", *(self.names if probabilities else [])]
        self.known = self.right = 0

    def rows(self, x: Tensor, labels: list[Any]) -> Iterator[list[str]]:
        classes = self.head.recipe.classes
        for truth, shares in zip(labels, self.head.filter.predict(x).tolist(), strict=True):
            best = max(range(len(shares)), key=shares.__getitem__)
            each = [f"{share:.6g}" for share in shares]
            self.known += truth in classes
            self.right += truth == classes[best]
            yield [self.names[best], each[best], *(each if self.probabilities else [])]

    def summary(self) -> str:
        if not self.known:
            return ""
        share = f"{self.right:,} of {self.known:,} ({100 * self.right / self.known:.1f} %)"
        return f"{share} of the samples with a known class are right"


class Values:
    """The mean and standard deviation of each sample's value, and the error of the means."""

    header = ("prediction", "deviation")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.known: list[float] = []
        self.errors: list[float] = []

    def rows(self, x: Tensor, labels: list[Any]) -> Iterator[list[str]]:
        recipe, answer = self.head.recipe, self.head.filter.predictive(x)
        means = (answer.mean[:, 0] * recipe.spread + recipe.center).tolist()
        deviations = (answer.variance[:, 0].sqrt() * recipe.spread).tolist()
        for truth, mean, deviation in zip(labels, means, deviations, strict=True):
            if truth is not None:
                self.known.append(truth)
                self.errors.append(truth - mean)
            yield [f"{mean:.9g}", f"{deviation:.6g}"]

    def summary(self) -> str:
        count = len(self.known)
        if not count:
            return ""
        center = fsum(self.known) / count
        total = fsum((value - center) ** 2 for value in self.known)
        left = fsum(error**2 for error in self.errors)
        explained = f", R^2 {1.0 - left / total:.3f}" if total else ""
        return f"root mean squared error {(left / count) ** 0.5:.6g}{explained} ({count:,} known)"
