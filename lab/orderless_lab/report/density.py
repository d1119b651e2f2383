"""The data of figure 1: the particles of `snapshots/*.st`, placed by t-SNE, and their density."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from orderless import io as storage

from ..text import file_name
from .summary import ReportError

POINTS = 4000  # t-SNE takes about ten seconds for this many
FEWEST_FRAMES = 6
MARGIN, BANDWIDTH = 0.12, 1 / 22  # of the unit square that holds all particles
COINCIDENT = 1e-15  # t-SNE divides by the spread of the points, and crashes where that is 0
LARGE = 1e15  # t-SNE squares distances in float32: where they overflow it crashes

Array = NDArray[np.float64]


class Frames(NamedTuple):
    """The particles of one run in F of its snapshots."""

    name: str
    steps: NDArray[np.int64]  # [F]
    places: Array  # [F, N, 2] in the unit square
    weights: Array  # [F, N], normalised
    chosen: NDArray[np.int64]  # [F], the indices of the snapshots
    moments: int  # how many snapshots there were

    def density(self, frame: int, size: int) -> Array:
        """sum_i w_i N(x; y_i, h^2 I) on a grid, `[size, size]`, bottom row first; the peak is 1."""
        grid = np.linspace(-MARGIN, 1 + MARGIN, size)
        density = weighted_density(self.places[frame], self.weights[frame], grid, BANDWIDTH)
        return density / density.max()

    def ess(self, frame: int) -> float:
        return 1 / float((self.weights[frame] ** 2).sum())


def weighted_density(places: Array, weights: Array, grid: Array, bandwidth: float) -> Array:
    """sum_i w_i N(x; y_i, bandwidth^2 I) up to a constant, bottom row first."""
    across, upward = (  # a Gaussian in two dimensions is a product of two Gaussians in one
        np.exp(-0.5 * ((grid[:, None] - places[None, :, i]) / bandwidth) ** 2) for i in range(2)
    )
    return (upward * weights) @ across.T


def load_frames(directory: Path) -> tuple[list[Frames], list[str]]:
    """The frames of every file of `directory/snapshots`, and a sentence for each file without."""
    found, problems = [], []
    for path in sorted((directory / "snapshots").glob("*.st")):
        try:
            found.append(place_snapshots(file_name(path.stem), *read_snapshots(path)))
        except ReportError as error:  # the report is written without this figure
            problems.append(f"The particles of {path.name} are not shown: {error}")
    return found, problems


def read_snapshots(path: Path) -> tuple[Array, Array, NDArray[np.int64]]:
    """positions `[S, N, P]`, log_weights `[S, N]`, step `[S]`."""
    keys = ("positions", "log_weights", "step")
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        found = storage.load(path)
    except (OSError, ValueError) as error:
        raise ReportError(f"{path.name} cannot be read: {error}") from None
    parts = found if isinstance(found, dict) else {}
    missing = [key for key in keys if not isinstance(parts.get(key), Tensor)]
    if missing:
        raise ReportError(f"{path.name} lacks {', '.join(missing)}.")
    positions, log_weights, step = (parts[key] for key in keys)
    return positions.double().numpy(), log_weights.double().numpy(), step.long().numpy()


def place_snapshots(
    name: str, positions: Array, log_weights: Array, steps: NDArray[np.int64]
) -> Frames:
    """Choose snapshots evenly, first and last included, and place all their particles together."""
    shapes = [list(array.shape) for array in (positions, log_weights, steps)]
    if positions.ndim != 3 or shapes[1] != shapes[0][:2] or shapes[2] != shapes[0][:1]:
        raise ReportError(
            "Snapshots must hold positions [S, N, P], log_weights [S, N] and step [S], got "
            f"{shapes[0]}, {shapes[1]} and {shapes[2]}."
        )
    points = math.prod(shapes[1])
    if points < 4:
        raise ReportError(f"Figure 1 needs at least 4 particles x snapshots, got {points}.")
    largest = log_weights.max(axis=1, keepdims=True)
    if not (np.isfinite(positions).all() and np.isfinite(largest).all()):
        raise ReportError("some positions or weights are not finite.")
    chosen = evenly(len(steps), max(FEWEST_FRAMES, POINTS // positions.shape[1]))
    weights = np.exp(log_weights[chosen] - largest[chosen])
    places = _embed(positions[chosen])
    # Into the unit square, with one factor for both axes to keep the ratios of distances.
    low, high = places.min(axis=(0, 1)), places.max(axis=(0, 1))
    size = float((high - low).max()) or 1.0
    return Frames(
        name,
        steps[chosen],
        0.5 + (places - (low + high) / 2) / size,
        weights / weights.sum(axis=1, keepdims=True),
        chosen,
        len(steps),
    )


def evenly(length: int, count: int) -> NDArray[np.int64]:
    """At most `count` evenly spread indices below `length`, first and last included."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(np.int64))


def _embed(snapshots: Array) -> Array:
    """[S, N, P] -> [S, N, 2] by one t-SNE over all S * N points, so that snapshots share axes."""
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped]
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        raise ReportError(
            "Figure 1 needs scikit-learn; install it with `pip install 'orderless[report]'`."
        ) from error
    *shape, size = snapshots.shape
    points = snapshots.reshape(math.prod(shape), size)
    if (largest := np.abs(points).max(initial=0)) > LARGE:
        points = points / largest
    if np.ptp(points, axis=0).max(initial=0) < COINCIDENT:
        return np.zeros((*shape, 2))
    points = np.pad(points, ((0, 0), (0, max(0, 2 - size))))  # the PCA wants two coordinates
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1):  # on a busy machine, threads waiting for each other take minutes
        placed = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
    return np.asarray(placed, dtype=np.float64).reshape(*shape, 2)
