"""Figure 1's data: `snapshots/*.st`, placed by one t-SNE per file, and the density of particles."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..storage import saving as storage
from .summary import ReportError

POINTS = 4000  # t-SNE takes about ten seconds for this many
FEWEST_FRAMES = 6
MARGIN, BANDWIDTH = 0.12, 1 / 22  # of the unit square that holds all particles

Array = NDArray[np.float64]


class Frames(NamedTuple):
    """Particles of one run at F moments; `moments` counts the snapshots that were taken.

    steps `[F]`; places `[F, N, 2]` in the unit square; weights `[F, N]`, normalised.
    """

    name: str
    steps: NDArray[np.int64]
    places: Array
    weights: Array
    chosen: NDArray[np.int64]
    moments: int

    def density(self, frame: int, size: int) -> Array:
        """sum_i w_i N(x; y_i, h^2 I) on a grid, `[size, size]` from below; 1 at the peak."""
        grid = np.linspace(-MARGIN, 1 + MARGIN, size)
        density = weighted_density(self.places[frame], self.weights[frame], grid, BANDWIDTH)
        return density / density.max()

    def ess(self, frame: int) -> float:
        return 1 / float((self.weights[frame] ** 2).sum())


def weighted_density(places: Array, weights: Array, grid: Array, bandwidth: float) -> Array:
    """sum_i w_i N(x; y_i, bandwidth^2 I) up to a constant, rows upward, columns across.

    A Gaussian in two dimensions is a product of two in one.
    """
    across, upward = (
        np.exp(-0.5 * ((grid[:, None] - places[None, :, i]) / bandwidth) ** 2) for i in range(2)
    )
    return (upward * weights) @ across.T


def load_frames(directory: Path) -> tuple[list[Frames], list[str]]:
    """Every file of `directory/snapshots`, and a sentence for each that cannot be shown.

    A missing scikit-learn or a broken file costs the picture, never the report.
    """
    found, problems = [], []
    for path in sorted((directory / "snapshots").glob("*.st")):
        try:
            found.append(place_snapshots(path.stem, *read_snapshots(path)))
        except ReportError as error:
            problems.append(f"The particles of {path.name} are not shown: {error}")
    return found, problems


def read_snapshots(path: Path) -> tuple[Array, Array, NDArray[np.int64]]:
    """positions `[S, N, P]`, log_weights `[S, N]`, step `[S]`."""
    keys = ("positions", "log_weights", "step")
    try:
        if not path.is_file():
            raise ValueError("it is no file")
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
    name: str, positions: Array, log_weights: Array, steps: NDArray[np.int64], seed: int = 0
) -> Frames:
    """Choose moments evenly, first and last included, and place all their particles at once."""
    shapes = [list(array.shape) for array in (positions, log_weights, steps)]
    if positions.ndim != 3 or shapes[1] != shapes[0][:2] or shapes[2] != shapes[0][:1]:
        raise ReportError(
            "Snapshots must hold positions [S, N, P], log_weights [S, N] and step [S], got "
            f"{shapes[0]}, {shapes[1]} and {shapes[2]}."
        )
    largest = log_weights.max(axis=1, keepdims=True, initial=-np.inf)
    if not (np.isfinite(positions).all() and np.isfinite(largest).all()):
        raise ReportError("some positions or weights are not finite.")
    count = min(len(steps), max(FEWEST_FRAMES, POINTS // positions.shape[1]))
    chosen = evenly(len(steps), count)
    weights = np.exp(log_weights[chosen] - largest[chosen])
    places = _embed(positions[chosen], seed)
    # into the unit square, both axes by the same factor: distances keep their meaning
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
    """At most `count` indices below `length`, evenly spread, first and last included."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(np.int64))


def _embed(snapshots: Array, seed: int) -> Array:
    """[S, N, P] -> [S, N, 2] by one t-SNE over all S * N points: the moments share their axes."""
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped]
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        raise ReportError(
            "Figure 1 needs scikit-learn; install it with `pip install 'orderless[report]'`."
        ) from error
    points = snapshots.reshape(-1, snapshots.shape[-1])
    if len(points) < 4:
        raise ReportError(f"Figure 1 needs at least 4 particles x snapshots, got {len(points)}.")
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1):  # threads that wait for each other on a busy machine cost minutes
        placed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return np.asarray(placed, dtype=np.float64).reshape(*snapshots.shape[:2], 2)
