"""Pages that nobody writes: the README as the home page, and the reference, one page a package."""

import re
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from mkdocs.structure.files import File, Files

import orderless
import orderless_lab

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?!docs/|https?:|#)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs when it knows the pages in docs/."""
    files.append(File.generated(config, "index.md", content=home()))
    for name in rooms():
        page = name.replace("orderless_lab.", "lab-").replace("orderless.", "")
        content = f"# `{name}`\n\n::: {name}\n"
        files.append(File.generated(config, f"reference/{page}.md", content=content))
    return files


def home() -> str:
    """The README; what it links outside of docs/ is not on the site."""
    text = OUTSIDE.sub(r"\1", (ROOT / "README.md").read_text(encoding="utf-8"))
    return text.replace("](docs/", "](")


def rooms() -> list[str]:
    """The modules in which the library's public names live, and the packages of the lab."""
    ours = {*orderless._HOMES.values(), *orderless._ROOMS}
    lab = [module.name for module in iter_modules(orderless_lab.__path__) if module.ispkg]
    return [f"orderless.{name}" for name in sorted(ours)] + [
        f"orderless_lab.{name}" for name in lab
    ]
