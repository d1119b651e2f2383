"""A headless Chromium, and a report page for it to open."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.tests.toys import make_cells, write_run

from orderless_lab.report import summarize
from orderless_lab.report.page import render

METHODS = ("wpf", "averaging", "gd", "ewc", "ewc+wpf", "joint", "product+particles")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail(
            "The report page is tested in Chromium: "
            "`apt-get install chromium chromium-driver` installs it.",
            pytrace=False,
        )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven methods, 6 orders x 2 seeds."""
    cells = make_cells(*METHODS, orders=6, seeds=2)
    directory = write_run(tmp_path_factory.mktemp("run") / "run", cells)
    path = directory / "report.html"
    path.write_text(render(summarize(directory)), encoding="utf-8")
    return path


@pytest.fixture
def open_page(browser: Any, page: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page at a width and in a colour scheme, everything unfolded; afterwards no error
    may stand in the console."""

    def open_at(width: int = 1400, scheme: str = "light") -> Any:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get(page.as_uri())
        browser.execute_script(
            "for (const d of document.querySelectorAll('details')) d.open = true"
        )
        return browser

    browser.get_log("browser")
    yield open_at
    assert browser.get_log("browser") == []
