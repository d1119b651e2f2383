"""A headless Chromium, and a report page for it to open."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.tests.browser.pages import METHODS, make_cell, write_page

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail(
            "The report page is tested in Chromium: "
            "`apt-get install chromium chromium-driver` installs it.",
            pytrace=False,
        )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file at a given width and colour scheme; afterwards no error may stand in the
    console.
    """

    def open_at(path: Path, width: int = 1200, scheme: str = "light", calm: bool = True) -> Any:
        # Without motion nothing has to be waited for: neither scrolling nor gliding marks.
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"},
        ]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get(path.as_uri())
        return browser

    for kind in ("browser", "performance"):
        browser.get_log(kind)
    yield open_at
    assert browser.get_log("browser") == []


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six methods, 6 orders x 2 seeds, with particles."""
    cells = [
        make_cell(method, order, seed)
        for method in METHODS
        for order in range(6)
        for seed in range(2)
    ]
    name = "splitmnist-domain-table1-wpf-order0-seed0"
    return write_page(tmp_path_factory.mktemp("run") / "run", cells, name)
