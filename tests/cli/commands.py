"""Commands in this process, and small tables for them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas
from typer.testing import CliRunner

from orderless.cli.main import app


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def refused(*words):
    """The one sentence on stderr of a command that ends with exit code 2."""
    said = run(*words, code=2).stderr
    assert said.startswith("orderless: ") and said.count("\n") == 1, said
    return said


def fit(data, out, *words):
    """Fit to a table with the classes in the column `kind`; what it said."""
    return run("fit", "--data", data, "--out", out, "--label", "kind", *words).output


def predictions(head, data, out, *words):
    said = run("predict", head, "--data", data, "--out", out, *words).output
    with open(out, newline="") as file:
        return said, list(csv.DictReader(file))


def table(rows: int, seed: int = 0) -> pandas.DataFrame:
    """Two clouds of four numbers, on scales of their own."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 4))
    kind = np.where(x[:, 0] * x[:, 1] > 0, "same", "other")
    x = x * [1.0, 1e4, 1e-3, 2.0] + [0.0, 7e5, 0.0, -3.0]
    return pandas.DataFrame(x, columns=list("abcd")).assign(kind=kind)


def priced(rows: int, seed: int = 0) -> pandas.DataFrame:
    """A number that depends on two of three columns, far from 0 and with noise of deviation 5."""
    generator = np.random.default_rng(seed)
    frame = pandas.DataFrame(generator.normal(size=(rows, 3)), columns=list("abc"))
    noise = generator.normal(size=rows) * 5.0
    return frame.assign(price=1e4 + 100.0 * np.abs(frame["a"]) + 50.0 * frame["b"] + noise)


def written(frame: pandas.DataFrame, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path
