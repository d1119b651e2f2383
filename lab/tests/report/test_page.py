"""The report page without a browser: what it holds, and that nothing can break out of it."""

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from lab.tests.report.synthetic_cells import LEVELS, TASKS, make_cell

import orderless as ol
from orderless_lab.report import load_run, summarize, write_report
from orderless_lab.report.charts import method_styles, scatter_spots, series
from orderless_lab.report.density import load_frames
from orderless_lab.report.page import page_data, render
from orderless_lab.report.page.data import summary_table
from orderless_lab.report.page.render import as_script_data

HOSTILE = "</script><img src=x onerror=alert(1)>"


def data_of(directory):
    run = load_run(directory)
    return page_data(run, summarize(run), *load_frames(run.directory))


@pytest.fixture
def undrawn(monkeypatch):
    """Charts take most of the time."""
    monkeypatch.setattr(
        "orderless_lab.report.page.data._with_charts", lambda result, *_: (result, {})
    )


class Elements(HTMLParser):
    """All elements of a page, and the text of its scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self._open = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.texts.append("")
            self._open = tag

    def handle_endtag(self, tag):
        if tag == self._open:
            self._open = None

    def handle_data(self, text):
        if self._open:
            self.texts[-1] += text


def save_snapshots(directory, name, particles=12, moments=TASKS + 1):
    generator = np.random.default_rng(0)
    folder = directory / "snapshots"
    folder.mkdir(exist_ok=True)
    arrays = {
        "positions": generator.normal(size=(moments, particles, 8)).astype(np.float32),
        "log_weights": -generator.exponential(size=(moments, particles)),
        "step": np.arange(moments) * 10,
    }
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    return ol.save(folder / f"{name}.st", tensors)


# ---------------------------------------------------------------------- the file


@pytest.mark.slow
def test_the_report_has_one_small_self_contained_page(full_run):
    (path,) = [p for p in write_report(full_run) if p.suffix == ".html"]
    page = path.read_text(encoding="utf-8")
    assert path == full_run / "report.html"
    assert len(page) < 500_000
    for tag, attributes in Elements(page).tags:
        assert "src" not in attributes and "xlink:href" not in attributes, tag
        assert attributes.get("href", "#").startswith("#"), tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(", page)
    assert not re.search(r"<svg[^>]*>.*?(<style| style=|<script).*?</svg>", page, re.S)


@pytest.mark.slow
def test_every_control_has_a_label(full_page):
    elements = Elements(render(full_page)).tags
    labelled = {attributes.get("for") for tag, attributes in elements if tag == "label"}
    controls = [
        attributes
        for tag, attributes in elements
        if tag in ("input", "select") and attributes.get("type") != "radio"
    ]
    assert len(controls) >= 5
    assert all(attributes["id"] in labelled for attributes in controls)


@pytest.mark.slow
def test_the_policy_admits_this_script_and_this_style_and_no_network(full_page):
    elements = Elements(render(full_page))
    (policy,) = [a["content"] for t, a in elements.tags if a.get("http-equiv")]
    style, _, script = elements.texts
    for kind, text in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy and "http" not in policy and "data:" not in policy


# ---------------------------------------------------------------------- names are data


def test_a_hostile_name_stays_a_name(write_cells):
    names = [
        HOSTILE,
        *["{{script}}", "<!--<script>", "&lt;", "\u2028\u2029", "\ud800"][: TASKS - 1],
    ]
    cells = [
        make_cell(
            HOSTILE,
            order,
            0,
            benchmark=HOSTILE,
            preset=HOSTILE,
            scenario=HOSTILE,
            task_names=names,
            command=HOSTILE,
            device=HOSTILE,
            versions={HOSTILE: HOSTILE},
            settings={HOSTILE: HOSTILE},
        )
        for order in range(2)
    ]
    page = render(data_of(write_cells(cells)))
    elements = Elements(page)
    assert [tag for tag, _ in elements.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in elements.tags]
    assert page.count("<img") == 0 and page.count("<!--") == 0
    (result,) = json.loads(elements.texts[1])["results"]
    assert result["tasks"] == names
    assert list(result["methods"]) == [HOSTILE]
    assert result["command"] == result["benchmark"] == HOSTILE


def test_no_character_can_end_the_data():
    text = as_script_data({"name": HOSTILE + "<!-- ]]> & \u2028 \u2029 \ud800 \x00"})
    assert not re.search("[<>&\u2028\u2029]", text) and text.isascii()
    assert json.loads(text)["name"].startswith(HOSTILE)
    with pytest.raises(ValueError):
        as_script_data(float("nan"))


# ---------------------------------------------------------------------- what is shown


def columns_of(table):
    return [column["heading"] for column in table["columns"]]


def test_best_entries_are_marked_and_broken_or_joint_runs_win_nothing(write_cells):
    cells = [
        make_cell(method, order, seed, **changes)
        for method, changes in {
            "wpf": {},
            "gd": {},
            "lwf+wpf": {},
            "joint": {"scores": {"accuracy": np.ones((TASKS + 1, TASKS)).tolist()}},
            "ewc": {"scores": {"accuracy": np.ones((TASKS + 1, TASKS)).tolist()}, "died_at": 3},
        }.items()
        for order in range(3)
        for seed in range(2)
    ]
    (summary,) = summarize(write_cells(cells))
    table = summary_table(summary)
    best = {row["method"]: row["best"] for row in table["rows"]}
    average = columns_of(table).index("average")
    assert [name for name in best if best[name][average]] == ["lwf+wpf"]
    assert not any(best["joint"]) and not any(best["ewc"])
    assert any(column["honour"] == "lowest order variance" for column in table["columns"])


def test_values_that_print_alike_are_best_together(write_cells):
    level = np.full((TASKS + 1, TASKS), 0.71234)
    cells = [
        make_cell(name, order, 0, scores={"accuracy": (level + change).tolist()})
        for name, change in {"wpf": 0.0, "gd": 1e-6, "si": -0.1}.items()
        for order in range(2)
    ]
    (summary,) = summarize(write_cells(cells))
    best = {row["method"]: row["best"][0] for row in summary_table(summary)["rows"]}
    assert best == {"wpf": True, "gd": True, "si": False}


def test_matrices_are_means_over_seeds(full_page):
    (result,) = full_page.results
    cells = [make_cell("ewc", 4, seed) for seed in range(3)]
    expected = np.mean([cell["scores"]["accuracy"] for cell in cells], axis=0)
    assert np.allclose(result.matrices["ewc"]["4"], expected, atol=6e-4)  # three decimals
    assert result.orders["4"] == cells[0]["order"]
    assert set(result.matrices) == set(LEVELS)


@pytest.mark.usefixtures("undrawn")
def test_a_matrix_with_gaps_keeps_them(write_cells):
    cell = make_cell("joint", 0, 0)
    cell["scores"]["accuracy"][1] = [None] * TASKS
    page = data_of(write_cells([cell]))
    assert page.results[0].matrices["joint"]["0"][1] == [None] * TASKS
    render(page)


def test_each_order_is_a_dot_and_its_method_their_mean(full_summary):
    for spot in scatter_spots(full_summary.methods):
        assert [dot.name for dot in spot.dots] == list("0123456789")
        average, total, order = np.array([dot[1:4] for dot in spot.dots]).T
        assert average.mean() == pytest.approx(spot.average)
        assert total.mean() == pytest.approx(spot.total)
        assert order.mean() == pytest.approx(spot.order, abs=1e-12)


@pytest.mark.slow
def test_a_task_that_nobody_learns_leaves_variances_as_they_are(write_cells):
    # Dividing by a mean of 0 is no number, and a picture would show no number as a variance of 0.
    cells = [make_cell(method, order, 0) for method in ("gd", "wpf") for order in range(4)]
    for cell in cells[:4]:  # of gradient descent
        for row in cell["scores"]["accuracy"]:
            row[0] = 0.0
    page = data_of(write_cells(cells))
    assert not page.results[0].dots
    picture = page.charts[0]["scatter-order-wide"]
    assert picture.count('class="mark') == 2 and 'class="dot"' not in picture
    assert ">variance of the order alone<" in picture and "normalized" not in picture


def test_charts_hold_a_mark_per_method_and_a_dot_per_order_where_the_axes_say(
    full_page, full_summary
):
    (charts,) = full_page.charts
    for size in ("wide", "narrow"):
        picture = ElementTree.fromstring(charts[f"scatter-total-{size}"])
        shapes = {kind: picture.findall(f".//*[@class='{kind}']") for kind in ("dot", "mark")}
        assert len(shapes["dot"]) == 10 * len(LEVELS)
        marks = shapes["mark"] + picture.findall(".//*[@class='mark hollow']")
        assert {mark.get("data-method") for mark in marks} == set(LEVELS)
        # on one axis, the better average is further to the right
        places = {mark.get("data-method"): float(mark.get("x")) for mark in marks if mark.get("x")}
        ranked = sorted(places, key=places.get)
        assert ranked == sorted(ranked, key=lambda name: full_summary.methods[name].average)
        assert len(places) > 5


def test_no_two_methods_share_colour_and_dashes_or_colour_and_shape():
    styles = method_styles(list(LEVELS)).values()
    assert len({(s.colour, s.dashes) for s in styles}) == len(LEVELS)
    assert len({(s.colour, s.marker, s.filled) for s in styles}) == len(LEVELS)


@pytest.mark.slow
def test_weights_over_time_have_mean_and_extremes(write_cells):
    traces = [
        {"step": [0, 50, 59], "ess": [10, 6, 2], "largest_weight": [0.1, None, 0.5]},
        {"step": [0, 50, 59], "ess": [10, 8, 4], "largest_weight": [0.1, 0.2, None]},
    ]
    cells = [make_cell("wpf", order, 0, trace=trace) for order, trace in enumerate(traces)]
    cells += [make_cell("gd", order, 0, particles=1) for order in range(2)]
    directory = write_cells(cells)
    (result,) = data_of(directory).results
    assert set(result.values["ess"]["lines"]) == {"wpf"}  # one network has no weights to speak of
    run = load_run(directory)
    effective = series(run.cells, "trace", "ess", "")
    line = effective.lines["wpf"]
    assert effective.steps == pytest.approx(np.arange(60))
    for name, expected in {"mean": [10, 7, 3], "low": [10, 6, 2], "high": [10, 8, 4]}.items():
        assert getattr(line, name)[[0, 50, 59]] == pytest.approx(expected)
    # where one run has come no further, the other speaks alone
    largest = series(run.cells, "trace", "largest_weight", "")
    assert largest.lines["wpf"].mean[59] == pytest.approx(0.5)


@pytest.mark.filterwarnings("error")
def test_weights_that_never_change_are_drawn_without_a_warning(write_cells):
    rounded = 10.000000000000002  # as 1 / sum w^2 of ten equal weights is
    equal = {"step": [0, 50], "ess": [rounded, rounded], "largest_weight": [0.1, 0.1]}
    (result,) = data_of(write_cells([make_cell("wpf", 0, 0, trace=equal)])).results
    assert result.values["ess"]["lines"]["wpf"][-1] == pytest.approx(10)


@pytest.mark.filterwarnings("error")
def test_a_trace_of_one_step_between_the_others_is_drawn_without_a_warning(write_cells):
    traces = {"wpf": {"step": [0, 50], "ess": [9, 5]}, "ewc+wpf": {"step": [7], "ess": [3]}}
    cells = [make_cell(name, 0, 0, trace=trace) for name, trace in traces.items()]
    (result,) = data_of(write_cells(cells)).results
    assert set(result.values["ess"]["lines"]) == set(traces)


def test_returns_have_curves_and_variances_that_are_not_normalized(write_cells):
    curves = {"step": [0, 10], "return": [-1.0, 5.0]}
    cells = [
        make_cell("gd", order, 0, score_kind="return", curves=curves, trace={})
        for order in range(2)
    ]
    page = data_of(write_cells(cells))
    (result,) = page.results
    assert result.score == "return" and not result.dots
    assert result.values["curves"]["lines"]["gd"][-1] == 5.0 and set(result.values) == {"curves"}
    render(page)


def test_without_matplotlib_the_page_has_its_numbers_and_says_why_there_are_no_charts(
    full_run, monkeypatch
):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = data_of(full_run)
    assert page.charts == [{}] and "pip install" in page.problems[0]
    assert len(page.results[0].table["rows"]) == len(LEVELS)
    render(page)


# ---------------------------------------------------------------------- the particles


@pytest.mark.usefixtures("undrawn")
def test_particles_are_placed_once_for_all_moments(write_cells):
    directory = write_cells([make_cell("wpf", 0, 0)])
    save_snapshots(directory, "splitmnist-domain-table1-wpf-order0-seed0")
    (frames,), problems = load_frames(directory)
    assert frames.places.shape == (TASKS + 1, 12, 2) and problems == []
    assert frames.places.min() >= 0 and frames.places.max() <= 1
    assert np.ptp(frames.places, axis=(0, 1)).max() == pytest.approx(1)
    assert frames.weights.sum(axis=1) == pytest.approx(1)
    ((label, moments),) = data_of(directory).results[0].density.items()
    assert label == "Weighted particle filter, order 0, seed 0"
    names = make_cell("wpf", 0, 0)["task_names"]
    order = [f"after {names[task]}" for task in make_cell("wpf", 0, 0)["order"]]
    assert [moment["stage"] for moment in moments] == ["before training", *order]
    assert [moment["ess"] for moment in moments] == pytest.approx(1 / (frames.weights**2).sum(1))


@pytest.mark.usefixtures("undrawn")
def test_each_result_shows_its_own_particles(write_cells):
    directory = write_cells([make_cell("wpf", 0, 0), make_cell("wpf", 0, 0, preset="demo")])
    save_snapshots(directory, "splitmnist-domain-demo-wpf-order0-seed0")
    save_snapshots(directory, "from-elsewhere")
    labels = {result.preset: list(result.density) for result in data_of(directory).results}
    assert labels["table1"] == ["from-elsewhere"]
    assert labels["demo"] == ["from-elsewhere", "Weighted particle filter, order 0, seed 0"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("content", [b"", b"not a tensor", bytes(8)])
def test_a_broken_snapshot_costs_the_animation_and_not_the_page(write_cells, content):
    directory = write_cells([make_cell("wpf", 0, 0)])
    (directory / "snapshots" / "bad.st").write_bytes(content)
    page = data_of(directory)
    assert page.results[0].density == {}
    assert len(page.problems) == 1 and "bad.st" in page.problems[0]
    render(page)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("key", ["positions", "log_weights", "step"])
def test_a_snapshot_of_the_wrong_shape_is_named(write_cells, key):
    directory = write_cells([make_cell("wpf", 0, 0)])
    path = save_snapshots(directory, "odd")
    ol.save(path, ol.load(path) | {key: torch.zeros(3)})
    assert "odd.st" in data_of(directory).problems[0]
