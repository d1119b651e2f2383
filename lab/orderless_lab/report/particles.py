"""Figure 1 of the paper: the particles of a run, placed by t-SNE, and their weighted density."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orderless import io as storage

from .figures import new_figure, plain
from .frame import ReportError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 6
POINTS = 4000  # t-SNE takes about ten seconds for this many
SIZE = 160  # of a density's grid
MARGIN = 0.12
BANDWIDTH = 1 / 22  # of the unit square that holds all particles
COINCIDENT = 1e-15  # t-SNE divides by the spread of the points, and crashes where that is 0
LARGE = 1e15  # t-SNE squares distances in float32: where they overflow it crashes

Array = NDArray[np.float64]


def read_snapshots(path: Path) -> tuple[Array, Array, Array]:
    """positions [S, N, P], log_weights [S, N] and steps [S] of a file."""
    try:
        content = storage.load(path)
        names = ("positions", "log_weights", "step")
        positions, log_weights, steps = (content[name].double().numpy() for name in names)
    except (OSError, *storage.INVALID_STATE) as error:
        raise ReportError(f"{path.name} cannot be read: {error}") from None
    return positions, log_weights, steps


def figure1(name: str, positions: Array, log_weights: Array, steps: Array) -> "Figure":
    """The density of the particles, Gaussians scaled by weight, in at most `PANELS` snapshots."""
    chosen, places, weights = place_snapshots(positions, log_weights, steps)
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure = new_figure(3.3 * columns + 0.9, 3.3 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    grid = np.linspace(-MARGIN, 1 + MARGIN, SIZE)
    ends = (grid[0], grid[-1], grid[0], grid[-1])
    for axis in axes.flat[len(chosen) :]:
        axis.set_visible(False)
    for axis, step, places_now, weights_now in zip(
        axes.flat, chosen, places, weights, strict=False
    ):
        density = weighted_density(places_now, weights_now, grid, BANDWIDTH)
        image = axis.imshow(density / density.max(), "cividis", extent=ends, origin="lower",
                            aspect="auto", vmin=0, vmax=1)  # fmt: skip
        axis.scatter(*places_now.T, s=3, color="white", alpha=0.35, linewidths=0)
        ess = 1 / (weights_now**2).sum()
        axis.set_title(f"step {step:.0f}, ESS {ess:.1f}", fontsize=9)
        axis.set(xticks=[], yticks=[])
    figure.supxlabel("t-SNE 1", fontsize=9)
    figure.supylabel("t-SNE 2", fontsize=9)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 1])
    bar.set_label("weighted density of particles, share of the panel's peak", fontsize=8)
    figure.suptitle(plain(name), fontsize=10)
    return figure


def place_snapshots(
    positions: Array, log_weights: Array, steps: Array
) -> tuple[Array, Array, Array]:
    """Steps [F], places [F, N, 2] and normalised weights [F, N] of evenly spread snapshots, first
    and last included; the places lie in the unit square and share its axes."""
    shapes = (positions.shape[:1], positions.shape[:2])
    if (steps.shape, log_weights.shape) != shapes or log_weights.size < 4:
        raise ReportError(
            "Snapshots must hold positions [S, N, P], log_weights [S, N] and step [S], 4 particles "
            f"at least, got {positions.shape}, {log_weights.shape} and {steps.shape}."
        )
    largest = log_weights.max(axis=1, keepdims=True)
    if not (np.isfinite(positions).all() and np.isfinite(largest).all()):
        raise ReportError("Some positions or weights are not finite.")
    count = max(2, min(PANELS, len(steps), POINTS // positions.shape[1]))
    chosen = np.unique(np.linspace(0, len(steps) - 1, count).round().astype(np.int64))
    weights = np.exp(log_weights[chosen] - largest[chosen])
    places = _embed(positions[chosen])
    # Into the unit square, with one factor for both axes to keep the ratios of distances.
    low = places.min(axis=(0, 1))
    high = places.max(axis=(0, 1))
    size = float((high - low).max()) or 1.0
    centred = 0.5 + (places - (low + high) / 2) / size
    return steps[chosen], centred, weights / weights.sum(axis=1, keepdims=True)


def _embed(snapshots: Array) -> Array:
    """[S, N, P] -> [S, N, 2] by one t-SNE over all S * N points, so that snapshots share axes."""
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    *shape, size = snapshots.shape
    points = snapshots.reshape(math.prod(shape), size)
    points = points / max(1.0, np.abs(points).max(initial=0) / LARGE)
    if np.ptp(points, axis=0).max(initial=0) < COINCIDENT:
        return np.zeros((*shape, 2))
    points = np.pad(points, ((0, 0), (0, max(0, 2 - size))))  # the PCA wants two coordinates
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1):  # on a busy machine, threads waiting for each other take minutes
        placed = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
    return np.asarray(placed, dtype=np.float64).reshape(*shape, 2)


def weighted_density(places: Array, weights: Array, grid: Array, bandwidth: float) -> Array:
    """sum_i w_i N(x; y_i, bandwidth^2 I) up to a constant, bottom row first."""
    # a Gaussian in two dimensions is a product of two Gaussians in one
    offsets = (grid[:, None, None] - places) / bandwidth  # [G, N, 2]
    across, upward = np.moveaxis(np.exp(-0.5 * offsets**2), 2, 0)
    return np.asarray((upward * weights) @ across.T)
