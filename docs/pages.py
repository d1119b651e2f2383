"""Pages that are not in docs/: the README as the home page, what it links, and the reference."""

import re
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from mkdocs.structure.files import File, Files

import orderless
import orderless_lab

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
}
SOURCE = re.compile(r"\[`(\w+)`\]\((?:\.\./)+(?:src|lab)/(orderless\w*)/(\w+)(?:\.py)?\)")
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?!docs/|https?:|#)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs when it knows the pages in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=content_of(source)))
    for name in rooms():
        page = name.replace("orderless_lab.", "lab-").replace("orderless.", "")
        content = f"# `{name}`\n\n::: {name}\n"
        files.append(File.generated(config, f"reference/{page}.md", content=content))
    return files


def on_page_markdown(text: str, **_: Any) -> str:
    """Links to a name's source, for readers of the files, lead to the reference on the site."""
    return SOURCE.sub(r"[`\1`][\2.\3.\1]", text)


def content_of(source: str) -> str:
    """A page of the root with its links as they are on the site, which has nothing else of it."""
    text = (ROOT / source).read_text(encoding="utf-8")
    for other, page in PAGES.items():
        text = text.replace(f"]({other})", f"](docs/{page})")
    return OUTSIDE.sub(r"\1", text).replace("](docs/", "](")


def rooms() -> list[str]:
    """The modules in which the library's public names live, and the packages of the lab."""
    ours = {*orderless._HOMES.values(), *orderless._ROOMS}
    lab = [module.name for module in iter_modules(orderless_lab.__path__) if module.ispkg]
    return [f"orderless.{name}" for name in sorted(ours)] + [
        f"orderless_lab.{name}" for name in lab
    ]
