"""`orderless predict`: apply a head of `orderless fit` to a user's images or tables."""

from __future__ import annotations

import csv
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import csv_cell
from . import options
from .options import open_files, option

if TYPE_CHECKING:
    from torch import Tensor

    from ..heads import Head


def predict(
    head: options.HeadFile,
    data: options.Data,
    out: Annotated[Path | None, option("CSV file [the terminal].")] = None,
    probabilities: Annotated[
        bool, option("Add a column for every class.", "--probabilities")
    ] = False,
) -> None:
    """Predict one class or value per image or row, and report the accuracy if answers are known.

    Classes have a probability, values a standard deviation.

    Example: orderless predict head.safetensors --data photos --out predictions.csv
    """
    from ..heads import Head
    from ..io import new_file
    from .progress import Countdown

    files = open_files(data, out, head)
    loaded = Head.load(head)
    recipe = loaded.recipe
    classes = recipe.classes if probabilities else []
    target: Any = nullcontext(sys.stdout)
    if out is not None:
        with suppress(OSError):  # the file itself says what is wrong
            out.parent.mkdir(parents=True, exist_ok=True)
        target = new_file(out, "w", newline="", encoding="utf-8")
    answered = []
    with target as stream, Countdown() as bar:
        progress = bar.of(files)
        writer = csv.writer(stream)
        number = "deviation" if recipe.spread else "probability"
        writer.writerow(["sample", "prediction", number, *map(csv_cell, classes)])
        done = 0
        for portion in recipe.portions(files):
            found = answers(loaded, portion.read())
            for name, truth, (guess, numbers) in zip(
                portion.names, portion.answers, found, strict=True
            ):
                shown = f"{guess:.9g}" if recipe.spread else csv_cell(guess)
                some = numbers[: 1 + len(classes)]
                writer.writerow([csv_cell(name), shown, *[f"{share:.6g}" for share in some]])
                if truth is not None:
                    answered.append((truth, guess))
            done += len(portion.names)
            progress(done)
        stream.flush()  # a closed pipe is noticed here
    known = [pair for pair in answered if recipe.spread or pair[0] in recipe.classes]
    unknown = len(answered) - len(known)
    if unknown:
        typer.echo(
            f"{unknown:,} samples are of classes that the head has not learned", err=out is None
        )
    if known:
        typer.echo(error_of(known) if recipe.spread else share_of(known), err=out is None)


def answers(head: Head, x: Tensor) -> list[tuple[Any, list[float]]]:
    """The class or value of every sample; and its probability followed by those of all classes, or
    its standard deviation."""
    if head.recipe.spread:
        mean, variance = head.predictive(x)
        return list(zip(mean.tolist(), variance.sqrt().unsqueeze(1).tolist(), strict=True))
    classes = head.recipe.classes
    shares = head.predict(x).tolist()
    return [(classes[row.index(max(row))], [max(row), *row]) for row in shares]


def share_of(known: list[tuple[Any, Any]]) -> str:
    """How many classes are right."""
    right = sum(truth == guess for truth, guess in known)
    share = f"{right:,} of {len(known):,} ({right / len(known):.1%})"
    return f"{share} of the samples with a known class are right"


def error_of(known: list[tuple[Any, Any]]) -> str:
    """The root mean squared error of values, and the share of their variance that is explained."""
    import numpy as np

    truth, guess = np.array(known).T
    error = np.square(truth - guess).mean()
    explained = f", R^2 {1.0 - error / truth.var():.3f}" if truth.var() > 0.0 else ""
    return f"root mean squared error {error**0.5:.6g}{explained} ({len(known):,} known)"
