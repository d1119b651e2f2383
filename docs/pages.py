"""Pages that nobody writes: the README as the home page, and the reference, one page a package."""

import re
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File, Files

import orderless
import orderless_lab

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?!docs/|https?:|#)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs when it knows the pages in docs/."""
    files.append(File.generated(config, "index.md", content=home()))
    for distribution in (orderless, orderless_lab):
        for name in rooms(distribution):
            path = f"reference/{name}.md".replace("orderless_lab.", "lab-")
            path = path.replace("orderless.", "")
            files.append(File.generated(config, path, content=f"# `{name}`\n\n::: {name}\n"))
    return files


def home() -> str:
    """The README; what it links outside of docs/ is not on the site."""
    text = OUTSIDE.sub(r"\1", (ROOT / "README.md").read_text(encoding="utf-8"))
    return text.replace("](docs/", "](")


def rooms(distribution: ModuleType) -> list[str]:
    """The packages of a distribution, and the modules that its users import by name."""
    public = getattr(distribution, "__all__", [])
    found = iter_modules(distribution.__path__, f"{distribution.__name__}.")
    return [
        module.name
        for module in found
        if module.ispkg or module.name.rpartition(".")[2] in public
    ]
