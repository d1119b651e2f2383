"""The tables of the README and the pages are those of the JSON files in lab/results."""

import json
import re
from pathlib import Path

import pytest
from docs.tools.tables import ROOT, main

RESULTS = ROOT / "lab/results"
PAGE = """# A page

Gradient descent reaches 79.4%.

<!-- table rates -->
<!-- end -->
"""
DESCRIBED = """[rates]
rows = [["Gradient descent", "gd"], ["Weighted", "wpf"]]
[rates.columns]
"method" = "$0"
"SGD 0.003" = "{splitmnist-table1:methods.$1:score}"
"above averaging" = "{splitmnist-table1:claims.[left=$1,right=averaging,measure=average]:claim}"
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page.toml").write_text(DESCRIBED)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def checked(page: Path, check: bool = True) -> int:
    return main(check, [page], page.parent)


def test_every_published_table_is_that_of_its_json():
    assert main(check=True) == 0


def test_a_table_is_written_once_and_a_changed_figure_is_found(page: Path):
    assert checked(page) == 1
    assert checked(page, check=False) == 0
    rows = json.loads((RESULTS / "splitmnist-table1.json").read_text())["methods"]
    deviation = 100 * rows["gd"]["order_variance"] ** 0.5
    expected = f"| Gradient descent | {100 * rows['gd']['average']:.1f} ± {deviation:.1f} | - |"
    assert expected in page.read_text()
    assert re.search(r"\| Weighted \| 79.6 ± 4.0 \| yes \(\+0.6\) \|", page.read_text())
    assert checked(page) == 0
    page.write_text(page.read_text().replace("| 79.4", "| 79.5"))
    assert checked(page) == 1


def test_a_percentage_in_the_prose_must_be_in_a_table(page: Path, capsys):
    page.write_text(PAGE.replace("79.4%", "100.9%"))
    assert checked(page, check=False) == 1
    assert "100.9" in capsys.readouterr().err


def test_a_description_without_its_table_is_found(page: Path, capsys):
    page.write_text("# A page without tables\n")
    assert checked(page) == 1
    assert "no table rates" in capsys.readouterr().err


def test_every_file_of_results_is_listed_with_its_command():
    listing = (RESULTS / "README.md").read_text(encoding="utf-8")
    line = r"^\| `(.+?)` \| `.+`.* \| .+ \| \d{4}-\d\d-\d\d \| [0-9a-f]{7,8} \|$"
    listed = re.findall(line, listing, re.MULTILINE)
    files = [str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*.json")]
    assert sorted(listed) == sorted(files)
