"""The report page as its reader meets it: in a browser, by mouse and by keyboard."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from lab.tests.browser.pages import METHODS, TASKS, make_cell, write_page
from lab.tests.browser.reading import (
    canvas,
    column,
    find,
    find_all,
    heat,
    luminance,
    marks,
    press,
    set_slider,
    wait_until,
)

pytestmark = pytest.mark.browser

HOSTILE = "</script><img src=x onerror=alert(1)>"


# ---------------------------------------------------------------------- opening


def test_everything_is_on_the_page(open_page, page):
    browser = open_page(page)
    assert "SplitMNIST" in browser.title
    assert find(browser, "h1").text == "SplitMNIST"
    assert len(find_all(browser, "#table tbody tr")) == len(METHODS)
    assert len(find_all(browser, "#scatter .mark")) == len(METHODS)
    assert len(find_all(browser, "#scatter .dot")) == 6 * len(METHODS)
    assert len(find_all(browser, "#matrix-left tbody td")) == (TASKS + 1) * TASKS
    assert "orderless run splitmnist --preset table1" in find(browser, "#command").text
    assert find_all(browser, ".claims .verdict")
    hidden = [section.get_attribute("id") for section in find_all(browser, "section[hidden]")]
    # an audit has the first two; these cells hold no episode returns and are no games
    assert hidden == ["findings", "suffering", "curves", "plasticity"]


def test_no_request_leaves_the_page(open_page, page):
    browser = open_page(page)
    sent = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            sent.append(message["params"]["request"]["url"])
    assert sent == [page.as_uri()]


def test_even_a_script_inside_the_page_cannot_reach_the_network(browser, page):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.get(page.as_uri())
        address = f"http://127.0.0.1:{server.server_port}/"
        refused = browser.execute_async_script(
            "const [address, done] = arguments; new Image().src = address;"
            "fetch(address, {mode: 'no-cors'}).then(() => done(false), () => done(true))",
            address,
        )
        server.shutdown()
    assert refused and asked == []
    assert any("Content Security Policy" in line["message"] for line in browser.get_log("browser"))


def test_every_chart_names_its_axes(open_page, page):
    browser = open_page(page)
    for chart in ("scatter", "matrix-left", "matrix-right", "weights-left", "weights-right"):
        names = [text.text for text in find_all(browser, f"#{chart} .axis")]
        assert len(names) == 2 and all(names), chart
    assert "t-SNE 1" in find(browser, "#density figure").text


# ---------------------------------------------------------------------- the table


def test_the_table_sorts_by_mouse(open_page, page):
    browser = open_page(page)
    before = [float(text.split()[0]) for text in column(browser, 2)]  # best first already
    heading = find(browser, "#table thead th:nth-child(2)")
    heading.find_element("css selector", "button").click()
    assert heading.get_attribute("aria-sort") == "descending"  # best first
    averages = [float(text.split()[0]) for text in column(browser, 2)]
    assert averages == sorted(averages, reverse=True) == before
    heading.find_element("css selector", "button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(text.split()[0]) for text in column(browser, 2)] == averages[::-1]


def test_the_table_sorts_by_keyboard(open_page, page):
    browser = open_page(page)
    before = column(browser, 1)
    button = find(browser, "#table thead th:nth-child(3) button")
    press(button, "ENTER")
    assert find(browser, "#table thead th:nth-child(3)").get_attribute("aria-sort") == "ascending"
    assert column(browser, 1)[0].startswith("Exact filter")  # its order variance is 0
    button = find(browser, "#table thead th:nth-child(1) button")
    press(button, "SPACE")
    assert column(browser, 1) == sorted(before, key=str.lower)
    assert "Sorted by method" in find(browser, "#sorted").get_attribute("textContent")


def test_the_best_row_is_marked_and_on_top_below_the_sentence(open_page, page):
    browser = open_page(page)
    sentence = find(browser, "#headline")
    assert sentence.text.startswith("Highest average: Exact filter 9")
    assert sentence.location["y"] < find(browser, "#table").location["y"]
    assert column(browser, 1)[0].startswith("Exact filter")
    (row,) = find_all(browser, "#table tr.best")
    assert "highest average" in row.text and "lowest order variance" in row.text
    assert row.text.startswith("Exact filter")


# ---------------------------------------------------------------------- pictures


def test_the_choice_of_variance_moves_the_marks(open_page, page):
    browser = open_page(page)
    before, name = marks(browser), find_all(browser, "#scatter .axis")[1].text
    find(browser, "input[value=total]").click()
    after = marks(browser)
    assert find_all(browser, "#scatter .axis")[1].text != name
    assert all(old != new for old, new in zip(before, after, strict=True))
    # only up or down: the average is what it was
    assert [x for x, _ in before] == [x for x, _ in after]


def test_pointing_at_a_dot_names_its_order(open_page, page):
    from selenium.webdriver import ActionChains

    browser = open_page(page)
    dot = find(browser, "#scatter [data-method=gd] .dot")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", dot)
    ActionChains(browser).move_to_element(dot).perform()
    text = find(browser, "#tooltip").text
    assert "Gradient descent" in text and "→" in text and "average" in text


def test_arrow_keys_walk_the_orders_of_a_method(open_page, page):
    browser = open_page(page)
    mark = find(browser, "#scatter .mark[data-method=gd]")
    browser.execute_script("arguments[0].focus()", mark)
    seen = set()
    for _ in range(6):
        press(mark, "ARROW_RIGHT")
        seen.add(find(browser, "#tooltip").text.splitlines()[1])
    assert len(seen) == 6 and all(line.startswith("order ") for line in seen)


def test_the_slider_changes_the_heat_map(open_page, page):
    browser = open_page(page)
    first, name = heat(browser), find(browser, "#order-name").text
    assert sum("learned" in cell for cell in first) == TASKS  # one frame per task
    press(find(browser, "#order"), "ARROW_RIGHT")
    assert heat(browser) != first
    assert find(browser, "#order-name").text != name
    set_slider(browser, "#order", 0)
    assert heat(browser) == first


def test_the_method_can_be_chosen_for_the_heat_map(open_page, page):
    browser = open_page(page)
    before, other = heat(browser), heat(browser, "right")
    find(browser, "#method-left option[value=wpf]").click()
    assert heat(browser) != before
    assert heat(browser, "right") == other


def test_values_over_time_can_be_read_by_keyboard(open_page, page):
    browser = open_page(page)
    chart = find(browser, "#weights-left svg")
    press(chart, "ARROW_RIGHT")
    first = find(browser, "#tooltip").text
    press(chart, "END")
    assert "Weighted particle filter" in first
    assert find(browser, "#tooltip").text != first


def test_the_legend_picks_out_one_method(open_page, page):
    browser = open_page(page)
    find(browser, "#scatter-legend button").click()
    chosen = find_all(browser, "#scatter .mark.chosen")
    assert [mark.get_attribute("data-method") for mark in chosen] == ["rb"]
    assert "faded" in find(browser, "#scatter").get_attribute("class")


@pytest.mark.parametrize("calm", [False, True])
def test_the_particles_move(open_page, page, calm):
    browser = open_page(page, calm=calm)
    assert "500" in find(browser, "#density-facts").text  # the end, where weights differ
    first = canvas(browser)
    press(find(browser, "#density-frame"), "HOME")
    press(find(browser, "#density-frame"), "ARROW_RIGHT")
    second = canvas(browser)
    assert first != second and "100" in find(browser, "#density-facts").text
    press(find(browser, "#density-play"), "SPACE")
    assert find(browser, "#density-play").text == "Pause"
    wait_until(lambda: canvas(browser) != second)
    press(find(browser, "#density-play"), "SPACE")
    assert find(browser, "#density-play").text == "Play"


# ---------------------------------------------------------------------- readers and their screens


def test_a_phone_shows_average_and_order_variance_and_hints_at_more(open_page, page):
    browser = open_page(page, width=390)
    for place in (1, 2, 3):
        for cell in find_all(browser, f"#table tr > :nth-child({place})"):
            box = browser.execute_script(
                "const box = arguments[0].getBoundingClientRect(); return [box.left, box.right]",
                cell,
            )
            assert 0 <= box[0] < box[1] <= 390
    assert find(browser, "#table-hint").is_displayed()


def test_matrices_open_on_the_best_method_and_one_network(open_page, page):
    browser = open_page(page)
    chosen = [find(browser, f"#method-{side}").get_attribute("value") for side in ("left", "right")]
    assert chosen == ["rb", "gd"]


def test_claims_that_cannot_be_decided_are_folded_away(open_page, tmp_path):
    cells = [make_cell(name, order, 0) for name in ("wpf", "gd") for order in range(2)]
    browser = open_page(write_page(tmp_path / "run", cells))
    assert not find(browser, "#claims-rule").is_displayed()
    folded, _, of, *_ = find(browser, "#claims-open summary").text.split()
    assert folded == of and int(of) >= 16
    assert not any(verdict.is_displayed() for verdict in find_all(browser, "#claims .verdict"))


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_the_body_never_scrolls_sideways(open_page, page, width):
    browser = open_page(page, width=width)
    visible, needed = browser.execute_script(
        "return [innerWidth, document.documentElement.scrollWidth]"
    )
    assert needed <= visible == width  # a phone would widen its view to show what sticks out
    chart = browser.execute_script("return document.querySelector('#scatter svg').clientWidth")
    assert 0 < chart < width


def test_charts_follow_the_width_of_the_window(open_page, page):
    browser = open_page(page)
    metrics = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    width = "return document.querySelector('#scatter svg').viewBox.baseVal.width"
    wait_until(lambda: browser.execute_script(width) < 390)  # drawn for it, not shrunk to it


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(open_page, page, scheme):
    browser = open_page(page, scheme=scheme)
    paper = luminance(find(browser, "body").value_of_css_property("background-color"))
    assert (paper < 0.1) == (scheme == "dark")
    for selector in ("body", ".lead", "nav a", ".verdict", ".evidence", ".tag"):
        ink = luminance(find(browser, selector).value_of_css_property("color"))
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast >= 4.5, selector  # what the web's accessibility guidelines ask of text
    for node in find_all(browser, "#scatter .mark:not(.hollow)"):
        mark = luminance(node.value_of_css_property("fill"))
        assert (max(mark, paper) + 0.05) / (min(mark, paper) + 0.05) >= 2


def test_all_controls_can_be_reached_and_show_it(open_page, page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = open_page(page)
    reached, unseen = set(), set()
    for _ in range(60):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        name, outline = browser.execute_script(
            "const node = document.activeElement;"
            "return [node.id || node.tagName, getComputedStyle(node).outlineStyle]"
        )
        reached.add(name)
        if outline == "none":
            unseen.add(name)
    assert {"order", "method-left", "method-right", "density-play", "density-frame"} <= reached
    assert unseen <= {"BODY"}  # where the round ends


# ---------------------------------------------------------------------- names and several results


def test_hostile_names_are_shown_as_they_are(open_page, tmp_path):
    cells = [
        make_cell(
            method,
            order,
            0,
            benchmark=HOSTILE,
            task_names=[f"{HOSTILE}{task}" for task in range(TASKS)],
            command=HOSTILE,
            settings={HOSTILE: HOSTILE},
        )
        for method in (HOSTILE, "__proto__")
        for order in range(2)
    ]
    browser = open_page(write_page(tmp_path / HOSTILE.replace("/", "_"), cells), width=390)
    assert find(browser, "h1").text == HOSTILE
    assert find(browser, "#command").text == HOSTILE
    names = [name.text for name in find_all(browser, "#table .name")]
    assert set(names) == {HOSTILE, "__proto__"}
    assert HOSTILE in find(browser, "#order-name").text
    assert not find_all(browser, "img")
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390


def test_several_results_can_be_chosen(open_page, tmp_path):
    cells = [make_cell("wpf", order, 0) for order in range(2)]
    cells += [make_cell("gd", order, 0, preset="demo") for order in range(3)]
    browser = open_page(write_page(tmp_path / "run", cells))
    assert len(find_all(browser, "#result option")) == 2
    methods = set()
    for option in find_all(browser, "#result option"):
        option.click()
        methods.add(column(browser, 1)[0])
    assert methods == {"Weighted particle filter", "Gradient descent"}


def test_returns_bring_learning_curves(open_page, tmp_path):
    curves = {"step": [0, 100_000, 2_000_000], "return": [-1.0, 2.0, 5.0]}
    cells = [
        make_cell(method, order, 0, benchmark="starpilot", score_kind="return", curves=curves)
        for method in ("wpf", "gd")
        for order in range(2)
    ]
    browser = open_page(write_page(tmp_path / "run", cells))
    names = [text.text for text in find_all(browser, "#curves-chart .axis")]
    assert names == ["training step", "episode return"]
    assert len(find_all(browser, "#curves-chart .line")) == 2
    texts = [text.text for text in find_all(browser, "#curves-chart text")]
    assert "500k" in texts and "1.5M" in texts
    assert find(browser, "#variance h2").text == "Return against variance"


def test_lifelong_runs_show_plasticity_by_place(open_page, tmp_path):
    from selenium.webdriver.common.keys import Keys

    cells = [
        make_cell(method, order, 0, benchmark="procgen-lifelong", scenario="starpilot")
        | {"score_kind": "return", "curves": {"step": [0, 10], "return": [0.0, 0.5]}}
        | {"plasticity": {"dormant": [0.1, 0.2, 0.3, 0.4, 0.5 + 0.1 * order]}}
        for method in ("ppo", "ppo+wpf")
        for order in range(3)
    ]
    browser = open_page(write_page(tmp_path / "run", cells))
    assert find(browser, "#plasticity").is_displayed()
    names = [text.text for text in find_all(browser, "#plasticity-dormant .axis")]
    assert names == ["place in the order", "dormant units"]
    assert len(find_all(browser, "#plasticity-return .line")) == 2
    assert not find_all(browser, "#plasticity-effective_rank svg")
    find(browser, "#plasticity-dormant svg").send_keys(Keys.END)
    assert find(browser, "#tooltip").text.splitlines()[0] == "dormant units, place 5"


def test_scores_of_the_way_have_no_matrix_and_the_optimizers_own_rate(open_page, tmp_path):
    scores = {"accuracy": [[None] * 5] * 5 + [[0.1, 0.2, 0.3, 0.4, 0.5]]}
    settings = {"optimizer": "adam", "lr": 1e-3, "adam_lr": 5e-4}
    cells = [
        make_cell("ppo", order, 0, benchmark="procgen-lifelong", scenario="starpilot", preset="gpu")
        | {"score_kind": "return", "scores": scores, "settings": settings}
        for order in range(2)
    ]
    cells += [make_cell("gd", order, 0) for order in range(2)]
    browser = open_page(write_page(tmp_path / "run", cells))
    shown = {}
    for option in find_all(browser, "#result option"):
        option.click()
        shown[find(browser, "#subtitle").text] = find(browser, "#matrices").is_displayed()
    assert shown == {
        "Starpilot, preset gpu, learning rate 0.0005": False,
        "domain-incremental, preset table1, learning rate 0.001": True,
    }
