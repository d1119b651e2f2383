"""Formulas as MathML, made when the site is built: no script and no network when it is read."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# what pymdownx.arithmatex leaves behind with `generic: true`
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_page_content(content: str, **_: Any) -> str:
    """Called by MkDocs with a page's HTML."""
    return _FORMULA.sub(_as_mathml, content)


def _as_mathml(found: re.Match[str]) -> str:
    display = "block" if found["tag"] == "div" else "inline"
    formula = convert(html.unescape(found["latex"]).strip(), display=display)
    # browsers leave no room between a function's name and what it is applied to
    formula = re.sub(r"(<mi>(?:log|max)</mi>)", r'\1<mspace width="0.17em"/>', formula)
    return f'<{found["tag"]} class="formula">{formula}</{found["tag"]}>'
