"""`orderless predict`: apply a head of `orderless fit` to a user's images or tables."""

from __future__ import annotations

import csv
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..text import csv_cell, percent
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
    recipe = loaded.recipe
    files = find_files(data)
    check_kind(recipe, files)
    certainty = "deviation" if recipe.spread else "probability"
    classes = [csv_cell(name) for name in recipe.classes] if probabilities else []
    known: list[tuple[Any, Any]] = []
    with ExitStack() as stack:
        stream: Any = sys.stdout
        if out is not None:
            check_output(out, head, *files.paths)
            out.parent.mkdir(parents=True, exist_ok=True)
            stream = stack.enter_context(new_file(out, "w", newline="", encoding="utf-8"))
        bar = stack.enter_context(Countdown())
        writer = csv.writer(stream)
        writer.writerow(["sample", "prediction", certainty, *classes])
        for number, portion in enumerate(recipe.portions(files)):
            bar.tell(number, None, f"{data}")
            guesses, numbers = answers(loaded, recipe.inputs(portion))
            known += zip(portion.answers, guesses, strict=True)
            width = 1 + len(classes)
            for name, guess, row in zip(portion.names, guesses, numbers.tolist(), strict=True):
                shown = f"{guess:.9g}" if recipe.spread else csv_cell(guess)
                writer.writerow([csv_cell(name), shown, *[f"{x:.6g}" for x in row[:width]]])
        stream.flush()  # a closed pipe is noticed here
    wanted = {truth for truth, _ in known} - {None} if recipe.spread else set(recipe.classes)
    known = [(truth, guess) for truth, guess in known if truth in wanted]
    if known:
        text = error_of(known) if recipe.spread else share_of(known)
        typer.echo(text, err=out is None)


def answers(head: Head, x: Tensor) -> tuple[list[Any], Tensor]:
    """The class or value of every sample, and its probability followed by those of all classes, or
    its standard deviation `[B, 1 + C]`."""
    import torch

    if head.recipe.spread:
        mean, variance = head.predictive(x)
        return mean.tolist(), variance.sqrt().unsqueeze(1)
    shares = head.predict(x)
    largest = shares.max(1, keepdim=True)
    names = [head.recipe.classes[place] for place in largest.indices[:, 0].tolist()]
    return names, torch.cat([largest.values, shares], 1)


def share_of(known: list[tuple[Any, Any]]) -> str:
    """How many classes are right."""
    right = sum(truth == guess for truth, guess in known)
    share = f"{right:,} of {len(known):,} ({percent(right / len(known))}%)"
    return f"{share} of the samples with a known class are right"


def error_of(known: list[tuple[Any, Any]]) -> str:
    """The root mean squared error of values, and the share of their variance that is explained."""
    import torch

    truth, guess = torch.tensor(known, dtype=torch.float64).unbind(1)
    error = (truth - guess).square().mean()
    variance = truth.var(correction=0)
    explained = f", R^2 {1.0 - error / variance:.3f}" if variance > 0.0 else ""
    return f"root mean squared error {error.sqrt():.6g}{explained} ({len(known):,} known)"
