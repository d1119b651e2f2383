"""`orderless predict`: what a head of `orderless fit` says about a user's images or tables."""

import csv
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from .errors import problems_as_sentences
from .fit import Data, check
from .options import option, word


@problems_as_sentences("smaller files")
def predict(
    head: Annotated[Path, word("A file written by orderless fit.")],
    data: Data,
    out: Annotated[Path | None, option("A CSV file [the terminal].")] = None,
    probabilities: Annotated[
        bool, option("A column for every class.", name="--probabilities")
    ] = False,
) -> None:
    """Classes and their probabilities, a line for every image or row; how many are right, if known.

    Example: orderless predict head.safetensors --data photos --out predictions.csv
    """
    import torch

    from ..distributed.head import Head
    from ..escaping import csv_cell
    from ..experiments.progress import Countdown
    from ..scenarios.files import find_files

    torch.set_num_threads(1)  # as in fit
    loaded, files = Head.load(head), find_files(data)
    recipe, classes = loaded.recipe, loaded.recipe.classes
    check(recipe, files)
    known = right = 0
    shards = recipe.shards(files)
    with ExitStack() as stack:
        bar = stack.enter_context(Countdown())
        stream = sys.stdout if out is None else stack.enter_context(out.open("w", newline=""))
        writer = csv.writer(stream)
        more = [csv_cell(name) for name in classes] if probabilities else []
        writer.writerow(["sample", "prediction", "probability", *more])
        for done, shard in enumerate(shards):
            bar.tell(done, len(shards), f"{data}")
            for names, x, labels in recipe.samples(shard):
                for name, truth, row in zip(names, labels, loaded.filter.predict(x), strict=True):
                    best = int(row.argmax())
                    each = [f"{share:.6g}" for share in row.tolist()]
                    cells = [csv_cell(name), csv_cell(classes[best]), each[best]]
                    writer.writerow([*cells, *(each if probabilities else [])])
                    known += truth in classes
                    right += truth == classes[best]
        bar.tell(len(shards), len(shards), "done")
    if known:
        share = f"{right:,} of {known:,} ({100 * right / known:.1f} %)"
        typer.echo(f"{share} of those whose class is known are right", err=out is None)
