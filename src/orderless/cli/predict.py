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

from ..text import csv_cell
from . import options
from .fit import check_kind
from .options import check_output, option

if TYPE_CHECKING:
    from torch import Tensor

    from ..heads import Head


def predict(
    head: options.HeadFile,
    data: options.Data,
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

    from ..heads import Head
    from ..heads.files import find_files
    from ..io import new_file
    from .progress import Countdown

    torch.set_num_threads(1)  # as in fit
    loaded = Head.load(head)
    files = find_files(data)
    recipe = loaded.recipe
    check_kind(recipe, files)
    answers = Values(loaded) if recipe.spread else Classes(loaded, probabilities)
    with ExitStack() as stack:
        stream: Any = sys.stdout
        if out is not None:
            check_output(out, head, *files.paths)
            out.parent.mkdir(parents=True, exist_ok=True)
            stream = stack.enter_context(new_file(out, "w", newline="", encoding="utf-8"))
        bar = stack.enter_context(Countdown())
        writer = csv.writer(stream)
        writer.writerow(["sample", *answers.header])
        done = 0
        for portion in recipe.portions(files):
            rows = answers.rows(recipe.inputs(portion), portion.answers)
            for name, row in zip(portion.names, rows, strict=True):
                writer.writerow([csv_cell(name), *row])
            done += len(portion.names)
            bar.tell(done, len(files.paths) if files.images else None, f"{data}")
        stream.flush()  # a closed pipe is noticed here
    if said := answers.summary():
        typer.echo(said, err=out is None)


class Classes:
    """The most probable class of each sample, its probability, and the accuracy."""

    def __init__(self, head: Head, probabilities: bool) -> None:
        self.head = head
        self.classes = head.recipe.classes
        self.probabilities = probabilities
        self.names = [csv_cell(name) for name in self.classes]
        self.header = ["prediction", "probability", *(self.names if probabilities else [])]
        self.known = 0
        self.right = 0

    def rows(self, x: Tensor, answers: list[Any]) -> Iterator[list[str]]:
        for truth, shares in zip(answers, self.head.predict(x).tolist(), strict=True):
            best = max(range(len(shares)), key=shares.__getitem__)
            texts = [f"{share:.6g}" for share in shares]
            self.known += truth in self.classes
            self.right += truth == self.classes[best]
            yield [self.names[best], texts[best], *(texts if self.probabilities else [])]

    def summary(self) -> str:
        if not self.known:
            return ""
        share = f"{self.right:,} of {self.known:,} ({100 * self.right / self.known:.1f}%)"
        return f"{share} of the samples with a known class are right"


class Values:
    """The mean and standard deviation of each sample's value, and the error of the means."""

    header = ("prediction", "deviation")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.known: list[float] = []
        self.errors: list[float] = []

    def rows(self, x: Tensor, answers: list[Any]) -> Iterator[list[str]]:
        mean, variance = self.head.predictive(x)
        triples = zip(answers, mean.tolist(), variance.sqrt().tolist(), strict=True)
        for truth, value, deviation in triples:
            if truth is not None:
                self.known.append(truth)
                self.errors.append(truth - value)
            yield [f"{value:.9g}", f"{deviation:.6g}"]

    def summary(self) -> str:
        count = len(self.known)
        if not count:
            return ""
        center = fsum(self.known) / count
        total = fsum((value - center) ** 2 for value in self.known)
        left = fsum(error**2 for error in self.errors)
        explained = f", R^2 {1.0 - left / total:.3f}" if total else ""
        return f"root mean squared error {(left / count) ** 0.5:.6g}{explained} ({count:,} known)"
