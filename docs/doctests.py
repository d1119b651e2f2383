"""Examples in docstrings (`>>> ...`) as code, where Markdown would see quotations and links."""

from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor


def on_config(config: Any) -> Any:
    """Called by MkDocs before anything is rendered."""
    config.markdown_extensions.append(Doctests())
    return config


class Doctests(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # before superfences, which is at 25 and takes the fences in
        md.preprocessors.register(FenceDoctests(md), "doctests", 30)


class FenceDoctests(Preprocessor):
    """An example goes from `>>>` to the next empty line."""

    def run(self, lines: list[str]) -> list[str]:
        fenced, inside = [], False
        for line in [*lines, ""]:
            if not inside and line.startswith(">>> "):
                fenced.append("```pycon")
                inside = True
            elif inside and not line.strip():
                fenced.append("```")
                inside = False
            fenced.append(line)
        return fenced
