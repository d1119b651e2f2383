"""Names that users choose, made harmless where they are shown: no name becomes a command."""

import re

MARKDOWN = {ord(letter): f"\\{letter}" for letter in "\\`*_[]|#"}
MARKDOWN |= {ord(letter): f"&#{ord(letter)};" for letter in "&<$~"}
PLAIN_CODE = re.compile(r"[\w+.,=()-]+( [\w+.,=()-]+)*", re.ASCII)
FORMULA = ("=", "+", "-", "@")  # a spreadsheet evaluates a cell that begins so


def printable(text: str) -> str:
    """Without control characters, line breaks and changes of direction: they are written out."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def markdown(text: str) -> str:
    """As text in Markdown, in a table too: neither markup nor HTML."""
    return printable(text).translate(MARKDOWN)


def markdown_code(text: str) -> str:
    """In backticks, or as escaped text where backticks would not hold it."""
    return f"`{text}`" if PLAIN_CODE.fullmatch(text) else markdown(text)


def csv_cell(text: str) -> str:
    """Never a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) else text
