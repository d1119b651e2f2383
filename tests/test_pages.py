"""Every Python block of these pages runs, top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


PAGES = ["README.md", "CONTRIBUTING.md", "docs/audit.md", "docs/scikit-learn.md", "docs/rl.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_on_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "page"})
