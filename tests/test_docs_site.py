"""The site builds without a warning, and reading it needs nothing from the network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(place), strict=True))
    return place


def test_every_page_is_there_and_every_one_can_be_reached(site: Path) -> None:
    sources = {p.relative_to(ROOT / "docs") for p in (ROOT / "docs").rglob("*.md")}
    home = (site / "index.html").read_text()
    for source in sources:
        page = source.with_suffix(".html")
        assert (site / page).exists(), page
        assert f'href="{page.as_posix()}"' in home, page  # in the navigation


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//[^"]*"', text), page
        sheets = re.findall(r"<link[^>]*>", text)
        fetched = [
            sheet for sheet in sheets if 'rel="stylesheet"' in sheet or "preconnect" in sheet
        ]
        assert not [sheet for sheet in fetched if "//" in sheet], page


def test_formulas_are_drawn_by_the_browser_itself(site: Path) -> None:
    theory = (site / "theory.html").read_text()
    assert theory.count("<math") > 30
    for page in site.rglob("*.html"):
        assert "arithmatex" not in page.read_text(), page


def test_the_reference_has_what_the_package_exports(site: Path) -> None:
    import orderless as ol

    text = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    names = [name for name in ol.__all__ if not name.startswith("__")]
    for name in [*names, "ExactClassifier", "ExactRegressor"]:
        assert re.search(rf'id="orderless\.(\w+\.)*{name}"|<code>orderless\.{name}</code>', text), (
            name
        )
