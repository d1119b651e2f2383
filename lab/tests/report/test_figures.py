"""What the figures draw, read back from matplotlib's own objects."""

from collections import Counter

import numpy as np
import pytest
import torch
from lab.tests.report.synthetic_cells import LEVELS, make_cell

import orderless as ol
from orderless_lab.paper import method_label
from orderless_lab.report import ReportError, summarize, write_report
from orderless_lab.report.density import place_snapshots, weighted_density
from orderless_lab.report.figures import figure1, figure2
from orderless_lab.report.reading import readable


def snapshots(seed=0, moments=4, particles=30):
    generator = np.random.default_rng(seed)
    start = generator.normal(size=(particles, 16))
    drift = np.arange(moments)[:, None, None] * generator.normal(size=(1, particles, 16))
    log_weights = -np.arange(moments)[:, None] * generator.exponential(size=(1, particles))
    return (start + drift).astype(np.float32), log_weights, np.arange(moments) * 100


@pytest.mark.slow
def test_figure_2_has_one_marker_per_method_at_its_average_and_variance(full_summary):
    figure = figure2([full_summary])
    panels = figure.axes
    assert len(panels) == 2
    for axes, variance in zip(
        panels, ("normalized_variance", "normalized_order_variance"), strict=True
    ):
        # Faint dots and marker alternate, method by method.
        assert len(axes.collections) == 2 * len(LEVELS)
        for place, entry in enumerate(readable(full_summary).methods.values()):
            dots = np.asarray(axes.collections[2 * place].get_offsets())
            marker = np.asarray(axes.collections[2 * place + 1].get_offsets())[0]
            assert marker == pytest.approx([100 * entry.average, getattr(entry, variance)])
            assert dots.shape == (10, 2)
            assert dots.mean(axis=0) == pytest.approx(marker, abs=1e-12)
        assert axes.get_xlabel() and axes.get_ylabel()
        low, high = axes.get_ylim()
        assert low <= 0 < high  # a variance of exactly 0 is on the paper
    labels = [text.get_text() for text in panels[1].get_legend().get_texts()]
    assert "Weighted particle filter" in labels and len(labels) == len(LEVELS)


def test_markers_of_all_methods_look_different(full_summary):
    looks = set()
    for marker in figure2([full_summary]).axes[0].collections[1::2]:
        path = marker.get_paths()[0].vertices
        face, edge = marker.get_facecolor()[0], marker.get_edgecolor()[0]
        looks.add((path.tobytes(), tuple(face), tuple(edge)))
    assert len(looks) == len(LEVELS)


def test_figure_2_names_the_methods_that_it_cannot_draw(write_cells):
    cells = [make_cell(name, order, 0) for name in ("gd", "ewc", "wpf") for order in range(2)]
    for cell in cells:
        if cell["method"] == "ewc":
            cell["scores"]["accuracy"][-1][0] = 0.0  # nothing is left of one task, in any order
    (summary,) = summarize(write_cells(cells))
    left, right = figure2([summary]).axes
    assert len(left.collections) == len(right.collections) == 2 * 2
    (note,) = left.texts
    assert "a task's mean accuracy is 0" in note.get_text().replace("\n", " ")
    assert note.get_text().endswith(": " + method_label("ewc"))


def test_figure_2_says_nothing_where_every_method_is_drawn(full_summary):
    assert not any(axes.texts for axes in figure2([full_summary]).axes)


def test_figure_2_leaves_out_returns(write_cells):
    cells = [make_cell("gd", order, 0, score_kind="return") for order in range(2)]
    with pytest.raises(ReportError, match="accuracies"):
        figure2(summarize(write_cells(cells)))


def test_density_is_the_weighted_sum_of_gaussians():
    generator = np.random.default_rng(0)
    places, weights = generator.normal(size=(5, 2)), generator.dirichlet(np.ones(5))
    grid = np.linspace(-2, 2, 7)
    density = weighted_density(places, weights, grid, 0.3)
    assert density.shape == (7, 7)
    for row, y in enumerate(grid):
        for column, x in enumerate(grid):
            expected = sum(
                w * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * 0.3**2))
                for w, (a, b) in zip(weights, places, strict=True)
            )
            assert density[row, column] == pytest.approx(expected)


def test_figure_1_has_a_panel_per_snapshot_with_its_step_and_ess():
    positions, log_weights, steps = snapshots()
    figure = figure1(place_snapshots("run", positions, log_weights, steps))
    panels = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert len(panels) == 4
    for axes, step, row in zip(panels, steps, log_weights, strict=True):
        weights = np.exp(row) / np.exp(row).sum()
        assert axes.get_title() == f"step {step}, ESS {1 / (weights**2).sum():.1f}"
        assert np.asarray(axes.collections[0].get_offsets()).shape == (30, 2)
    # One t-SNE for all: the panels share one coordinate system.
    assert len({axes.get_xlim() for axes in panels}) == 1


def test_a_particle_with_all_the_weight_is_the_only_peak():
    positions, log_weights, steps = snapshots()
    log_weights = np.full_like(log_weights, -1e4)
    log_weights[:, 7] = 0.0
    figure = figure1(place_snapshots("run", positions, log_weights, steps))
    axes = figure.axes[0]
    image = axes.images[0]
    row, column = np.unravel_index(np.argmax(image.get_array()), image.get_array().shape)
    left, right, bottom, top = image.get_extent()
    peak = (left + (right - left) * column / 159, bottom + (top - bottom) * row / 159)
    particle = np.asarray(axes.collections[0].get_offsets())[7]
    assert peak == pytest.approx(particle, abs=(right - left) / 100)


def test_many_snapshots_are_thinned_to_the_panels_first_and_last_kept():
    positions, log_weights, steps = snapshots(moments=11, particles=8)
    figure = figure1(place_snapshots("run", positions, log_weights, steps), panels=3)
    titles = [axes.get_title().split(",")[0] for axes in figure.axes if axes.get_title()]
    assert titles == ["step 0", "step 500", "step 1000"]


def test_particles_are_placed_by_one_thread_whatever_the_machine_offers(monkeypatch):
    import sklearn.manifold
    from threadpoolctl import threadpool_info, threadpool_limits

    seen = []

    class Watched(sklearn.manifold.TSNE):
        def fit_transform(self, points):
            seen.extend(pool["num_threads"] for pool in threadpool_info())
            return super().fit_transform(points)

    monkeypatch.setattr(sklearn.manifold, "TSNE", Watched)
    with threadpool_limits(2):
        place_snapshots("run", *snapshots(particles=10, moments=2))
    assert seen and set(seen) == {1}


@pytest.mark.parametrize("positions", [np.ones((6, 5, 4)), np.ones((6, 5, 0))])
def test_particles_that_never_moved_share_one_place(positions):
    frames = place_snapshots("run", positions, np.zeros((6, 5)), np.arange(6))
    assert (frames.places == 0.5).all()


def test_networks_with_one_parameter_have_places():
    positions = np.random.default_rng(0).normal(size=(6, 5, 1))
    frames = place_snapshots("run", positions, np.zeros((6, 5)), np.arange(6))
    assert frames.places.shape == (6, 5, 2) and np.isfinite(frames.places).all()


@pytest.mark.parametrize("scale", [1e30, 1e160])
def test_networks_that_diverged_have_places(scale):
    positions, log_weights, steps = snapshots(particles=5)
    frames = place_snapshots("run", scale * positions.astype(np.float64), log_weights, steps)
    assert np.isfinite(frames.places).all()
    assert len(np.unique(frames.places.round(3).reshape(-1, 2), axis=0)) == 20


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (3, 1)])
def test_too_few_particles_are_refused(shape):
    with pytest.raises(ReportError, match=f"at least 4 .* got {shape[0] * shape[1]}"):
        place_snapshots("run", np.zeros((*shape, 2)), np.zeros(shape), np.zeros(shape[0], int))


def test_snapshots_of_the_wrong_shape_are_refused():
    positions, log_weights, steps = snapshots()
    with pytest.raises(ReportError, match=r"log_weights \[S, N\]"):
        place_snapshots("run", positions, log_weights[:, :5], steps)


@pytest.mark.slow
def test_write_report_writes_tables_and_figures_next_to_the_cells(full_run):
    positions, log_weights, steps = snapshots(particles=10, moments=2)
    folder = full_run / "snapshots"
    folder.mkdir(exist_ok=True)
    arrays = {"positions": positions, "log_weights": log_weights, "step": steps}
    ol.save(folder / "wpf-0-0.st", {key: torch.from_numpy(a) for key, a in arrays.items()})
    written = write_report(full_run)
    assert sorted(path.name for path in written) == [
        "figure1-wpf-0-0.png",
        "figure2.png",
        "report.csv",
        "report.html",
        "report.json",
        "report.md",
        "report.tex",
        "report.txt",
    ]
    assert all(path.parent == full_run and path.stat().st_size > 500 for path in written)
    assert (full_run / "figure2.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_broken_snapshot_costs_a_warning_and_no_table(write_cells, tmp_path):
    directory = write_cells([make_cell("gd", 0, 0)])
    (directory / "snapshots").mkdir(exist_ok=True)
    ol.save(directory / "snapshots" / "bad.st", {"positions": torch.zeros(1, 2, 3)})
    with pytest.warns(UserWarning, match="bad.st lacks log_weights, step"):
        written = write_report(directory, tmp_path / "elsewhere" / "deep")
    assert {path.suffix for path in written} >= {".txt", ".md", ".csv", ".tex", ".json"}
    assert all(path.parent == tmp_path / "elsewhere" / "deep" for path in written)


def test_an_output_path_that_cannot_be_a_folder_gives_one_sentence(write_cells, tmp_path):
    directory = write_cells([make_cell("gd", 0, 0)])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match="The report cannot be written to .*file"):
        write_report(directory, tmp_path / "file")


@pytest.mark.slow
def test_a_damaged_snapshot_costs_a_figure_and_not_the_report(write_cells):
    run = write_cells([make_cell("wpf", order, 0) for order in range(2)])
    (run / "snapshots").mkdir(exist_ok=True)
    (run / "snapshots" / "wpf-0-0.st").write_bytes(b"and then nothing")
    with pytest.warns(UserWarning, match="wpf-0-0.st cannot be read"):
        written = {path.name for path in write_report(run)}
    assert {"report.md", "report.html", "figure2.png"} <= written


@pytest.mark.slow
def test_a_name_that_looks_like_a_formula_is_drawn_as_it_is(write_cells, tmp_path):
    name = r"$\frac$ \x1b[31m"
    cells = [make_cell(name, order, 0, preset=name) for order in range(2)]
    write_report(write_cells(cells))
    (summary,) = summarize(tmp_path / "run")
    figure = figure2([summary])
    figure.canvas.draw()
    (label,) = figure.axes[1].get_legend().get_texts()
    assert label.get_text() == r"\$\frac\$ \x1b[31m"  # matplotlib prints \$ as a dollar sign


@pytest.mark.slow
def test_one_run_is_read_placed_and_summarised_once(write_cells, monkeypatch):
    from orderless_lab.experiments import record
    from orderless_lab.report import collect, density

    run = write_cells([make_cell(name, order, 0) for name in ("gd", "wpf") for order in range(3)])
    positions, log_weights, steps = snapshots(particles=10, moments=2)
    (run / "snapshots").mkdir(exist_ok=True)
    arrays = {"positions": positions, "log_weights": log_weights, "step": steps}
    ol.save(run / "snapshots" / "x.st", {k: torch.from_numpy(a) for k, a in arrays.items()})
    counts = Counter()

    def counted(module, name):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: (counts.update([name]), real(*a, **k))[1])

    counted(record, "_checked")
    counted(collect, "_summarize_method")
    counted(density, "_embed")
    write_report(run)
    assert counts == {"_checked": 6, "_summarize_method": 2, "_embed": 1}
