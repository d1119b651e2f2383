"""What the figures draw, read back from matplotlib's own objects, and the files of a report."""

import numpy as np
import pytest
import torch
from lab.tests.toys import LEVELS, make_cell, make_cells

import orderless as ol
from orderless_lab.report import ReportError, write_report
from orderless_lab.report.figures import figure2, looks, orders, over_steps, png
from orderless_lab.report.particles import figure1, place_snapshots, weighted_density


def snapshots(moments=4, particles=30):
    generator = np.random.default_rng(0)
    start = generator.normal(size=(particles, 16))
    drift = np.arange(moments)[:, None, None] * generator.normal(size=(1, particles, 16))
    log_weights = -np.arange(moments)[:, None] * generator.exponential(size=(1, particles))
    return start + drift, log_weights, np.arange(moments) * 100.0


def save_snapshots(directory, name="wpf-0-0", **changes):
    arrays = dict(zip(("positions", "log_weights", "step"), snapshots(2, 10), strict=True))
    tensors = {key: torch.from_numpy(array) for key, array in (arrays | changes).items()}
    (directory / "snapshots").mkdir(exist_ok=True)
    ol.save(directory / "snapshots" / f"{name}.st", tensors)


def test_every_order_of_every_row_is_a_dot_and_the_highest_row_is_on_top(full_summary):
    axes = orders(full_summary.table, full_summary.numbers).axes[0]
    ranked = full_summary.numbers["average"].sort_values().index
    for height, (name, dots) in enumerate(zip(ranked, axes.lines[::2], strict=True)):
        expected = 100 * np.array(full_summary.methods[name]["order_averages"])
        assert dots.get_xdata() == pytest.approx(expected)
        assert (np.asarray(dots.get_ydata()) == height).all()
        assert full_summary.table.label(name) in axes.texts[height].get_text()


def test_figure_2_has_a_mark_per_row_at_its_average_and_variance(full_summary):
    numbers = full_summary.numbers
    axes = figure2(full_summary.table, numbers).axes[0]
    assert len(axes.lines) == len(LEVELS)
    for line in axes.lines:
        (name,) = [n for n in LEVELS if full_summary.table.label(n) == line.get_label()]
        expected = [100 * numbers["average"][name], numbers["normalized_variance"][name]]
        assert line.get_xydata()[0] == pytest.approx(expected)
    low, high = axes.get_ylim()
    assert low <= 0 < high  # a variance of exactly 0 is on the paper


def test_all_rows_look_different_and_a_method_without_weights_is_an_outline(full_summary):
    found = looks(full_summary.table)
    keys = ("color", "marker", "markerfacecolor")
    assert len({tuple(look[key] for key in keys) for look in found.values()}) == len(LEVELS)
    assert found["ewc"]["markerfacecolor"] == "none" != found["ewc+wpf"]["markerfacecolor"]


def test_curves_are_interpolated_where_a_run_has_values(summary_of):
    curve = {"step": [0.0, 100.0, 200.0], "return": [0.0, None, 4.0]}
    later = {"step": [100.0, 200.0], "return": [5.0, 6.0]}
    cells = [make_cell("gd", o, 0, curves=c) for o, c in enumerate((curve, later))]
    row = summary_of(cells).table.rows["gd"]
    values = over_steps(row, "curves", "return")
    assert values.index[0] == 0 and values.index[-1] == 200
    assert values[0].to_numpy() == pytest.approx(values.index.to_numpy() / 50)
    assert values[1][values.index < 100].isna().all() and values[1].iloc[-1] == 6.0


def test_a_name_that_looks_like_a_formula_is_drawn_as_it_is(summary_of):
    name = "$\\frac$ \x1b[31m"
    summary = summary_of(make_cells(name, orders=2))
    figure = figure2(summary.table, summary.numbers)
    assert png(figure).startswith(b"\x89PNG")
    assert figure.axes[0].lines[0].get_label() == r"\$\frac\$ \x1b[31m"


# ---------------------------------------------------------------------- particles


def test_density_is_the_weighted_sum_of_gaussians():
    generator = np.random.default_rng(0)
    places, weights = generator.normal(size=(5, 2)), generator.dirichlet(np.ones(5))
    grid = np.linspace(-2, 2, 7)
    density = weighted_density(places, weights, grid, 0.3)
    for row, y in enumerate(grid):
        for column, x in enumerate(grid):
            expected = sum(
                w * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * 0.3**2))
                for w, (a, b) in zip(weights, places, strict=True)
            )
            assert density[row, column] == pytest.approx(expected)


def test_figure_1_has_a_panel_for_evenly_spread_snapshots_on_the_same_axes():
    positions, log_weights, steps = snapshots(moments=11, particles=8)
    panels = [axes for axes in figure1("run", positions, log_weights, steps).axes if axes.images]
    assert len(panels) == 6
    for axes, moment in zip(panels, (0, 2, 4, 6, 8, 10), strict=True):
        weights = np.exp(log_weights[moment]) / np.exp(log_weights[moment]).sum()
        assert axes.get_title() == f"step {steps[moment]:.0f}, ESS {1 / (weights**2).sum():.1f}"
        assert np.asarray(axes.collections[0].get_offsets()).shape == (8, 2)
    assert len({axes.get_xlim() for axes in panels}) == 1


@pytest.mark.parametrize(
    "positions",
    [
        np.ones((6, 5, 4)),  # never moved
        np.ones((6, 5, 0)),
        np.random.default_rng(0).normal(size=(6, 5, 1)),  # one parameter
        1e160 * snapshots(6, 5)[0],  # diverged
    ],
)
def test_odd_particles_have_places(positions):
    _, places, weights = place_snapshots(positions, np.zeros((6, 5)), np.arange(6.0))
    assert places.shape == (6, 5, 2) and np.isfinite(places).all()
    assert weights.sum(axis=1) == pytest.approx(1)


@pytest.mark.parametrize("shapes", [((0, 0, 2), (0, 0)), ((3, 1, 2), (3, 1)), ((4, 2, 2), (4, 1))])
def test_snapshots_of_a_wrong_shape_are_refused(shapes):
    with pytest.raises(ReportError, match=r"\[S, N\]"):
        place_snapshots(*map(np.zeros, shapes), np.zeros(shapes[0][0]))


# ---------------------------------------------------------------------- files


def test_a_report_is_tables_page_and_figures_beside_the_cells(write_cells):
    directory = write_cells(make_cells("gd", "wpf", orders=3))
    save_snapshots(directory)
    precious = directory.parent / "precious"
    precious.write_text("keep me")
    (directory / "orders.png").symlink_to(precious)  # links are never followed
    written = write_report(directory)
    assert precious.read_text() == "keep me"
    assert sorted(path.name for path in written) == [
        "figure1-wpf-0-0.png", "figure2.png", "orders.png", "report.csv", "report.html",
        "report.json", "report.md", "report.tex", "report.txt", "weights.png",
    ]  # fmt: skip
    assert all(path.parent == directory and path.stat().st_size > 400 for path in written)


def test_a_broken_snapshot_costs_a_warning_and_no_table(write_cells, tmp_path):
    directory = write_cells(make_cells("gd"))
    save_snapshots(directory, "bad", step=np.zeros(1))
    (directory / "snapshots" / "worse.st").write_bytes(b"and then nothing")
    with pytest.warns(UserWarning, match=r"bad\.st|worse\.st") as warned:
        written = write_report(directory, out=tmp_path / "elsewhere" / "deep")
    assert len(warned) == 2
    assert {"report.html", "report.txt", "orders.png"} <= {path.name for path in written}


def test_an_output_path_that_cannot_be_a_folder_gives_one_sentence(write_cells, tmp_path):
    directory = write_cells(make_cells("gd"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match="cannot be written to .*file"):
        write_report(directory, out=tmp_path / "file")
