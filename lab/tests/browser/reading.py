"""What tests read off a page, and what they press on it."""

from __future__ import annotations

import time


def find(browser, selector):
    return browser.find_element("css selector", selector)


def find_all(browser, selector):
    return browser.find_elements("css selector", selector)


def press(node, key):
    from selenium.webdriver.common.keys import Keys

    node.send_keys(getattr(Keys, key))


def set_slider(browser, selector, value):
    """As a drag does: the value first, then the event."""
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    browser.execute_script(script, find(browser, selector), value)


def column(browser, number):
    return [cell.text for cell in find_all(browser, f"#table tbody tr > :nth-child({number})")]


def heat(browser, side="left"):
    script = (
        "return [...document.querySelectorAll(arguments[0])]"
        ".map(cell => cell.style.backgroundColor + cell.className)"
    )
    return browser.execute_script(script, f"#matrix-{side} tbody td")


def marks(browser):
    script = (
        "return [...document.querySelectorAll('#scatter .mark')].map(mark => {"
        "const box = mark.getBoundingClientRect(); return [box.x, box.y].map(Math.round)})"
    )
    return browser.execute_script(script)


def canvas(browser):
    return browser.execute_script(
        "return document.getElementById('density-canvas').toDataURL('image/png')"
    )


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def luminance(colour):
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(f * c for f, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
