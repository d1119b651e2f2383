"""The report page in a real browser: on a phone and a desk, in both schemes, without a network."""

import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytestmark = pytest.mark.browser


def find_all(browser, selector):
    return browser.find_elements("css selector", selector)


def luminance(colour):
    """Of `rgb(...)` from 0 to 255, or of `color(srgb ...)` from 0 to 1."""
    channels = [float(number) for number in re.findall(r"[\d.]+", colour)[:3]]
    if "srgb" not in colour:
        channels = [channel / 255 for channel in channels]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(f * c for f, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(ink, paper):
    bright, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_off_screen(open_page, width):
    browser = open_page(width)
    visible, needed = browser.execute_script(
        "return [innerWidth, document.documentElement.scrollWidth]"
    )
    assert needed <= visible == width  # a phone would widen its view to show what sticks out
    outside = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter(node => {"
        "const box = node.getBoundingClientRect();"
        "return box.width && (box.left < 0 || box.right > innerWidth + 1)"
        "&& !node.closest('.heat') && !node.closest('svg defs')"
        "}).map(node => node.outerHTML.slice(0, 80))"
    )
    assert outside == []
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(node => node.clientWidth)"
    )
    assert len(sizes) == 3 and all(250 < size < width for size in sizes)


def test_the_table_sorts_by_mouse_and_by_keyboard(open_page):
    browser = open_page()

    def column(number):
        return [
            cell.text for cell in find_all(browser, f".results tbody tr > :nth-child({number})")
        ]

    averages = column(2)
    assert averages == sorted(averages, key=float, reverse=True)  # the highest first
    heading = find_all(browser, ".results thead th")[3]
    heading.find_element("css selector", "button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(4) == sorted(column(4), key=lambda text: float(text.strip("<")), reverse=True)
    heading.find_element("css selector", "button").send_keys(" ")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(4) == sorted(column(4), key=lambda text: float(text.strip("<")))
    find_all(browser, ".results thead button")[0].click()
    assert column(1) == sorted(column(1), key=str.lower)
    assert sorted(column(2)) == sorted(averages)  # rows moved as a whole


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_can_be_read_in_both_schemes(open_page, scheme):
    browser = open_page(scheme=scheme)
    (body,) = find_all(browser, "body")
    paper = body.value_of_css_property("background-color")
    assert (luminance(paper) < 0.1) == (scheme == "dark")
    for selector in ("body", ".quiet", "summary", "small", ".results td", "figcaption"):
        ink = find_all(browser, selector)[0].value_of_css_property("color")
        assert contrast(ink, paper) >= 4.5, selector  # what accessibility guidelines ask of text
    for text in find_all(browser, "figure svg text"):
        assert contrast(text.value_of_css_property("fill"), paper) >= 4.5
    for line in find_all(browser, "figure.orders svg path[style*='stroke-width: 2']"):
        assert contrast(line.value_of_css_property("stroke"), paper) >= 2
    for cell in find_all(browser, ".heat td")[:12]:
        shade = cell.value_of_css_property("background-color")
        assert contrast(cell.value_of_css_property("color"), shade) >= 4.5


def test_the_browser_refuses_to_load_anything(open_page):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    browser = open_page()
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        refused = browser.execute_async_script(
            "const [address, done] = arguments; new Image().src = address;"
            "fetch(address, {mode: 'no-cors'}).then(() => done(false), () => done(true))",
            f"http://127.0.0.1:{server.server_port}/",
        )
        server.shutdown()
    assert refused and asked == []
    assert any("Content Security Policy" in line["message"] for line in browser.get_log("browser"))
