"""Names that users choose, and tables, as text for Markdown and file names."""

import re
from collections.abc import Sequence

from orderless.errors import printable

MISSING = "-"
MARKDOWN = {ord(letter): f"\\{letter}" for letter in "\\`*_[]|#"}
MARKDOWN |= {ord(letter): f"&#{ord(letter)};" for letter in "&<$~"}
PLAIN_CODE = re.compile(r"[\w+.,=()-]+( [\w+.,=()-]+)*", re.ASCII)
# what one system or another does not accept; % itself, so that no two texts have one name
NOT_IN_FILE_NAMES = re.compile(r'[<>:"/\\|?*%\x00-\x1f]|[. ]$')
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def markdown(text: str) -> str:
    """The text for Markdown, also in a table, with markup and HTML escaped."""
    return printable(text).translate(MARKDOWN)


def markdown_code(text: str) -> str:
    """The text in backticks, or escaped if it has characters that backticks cannot hold."""
    return f"`{text}`" if PLAIN_CODE.fullmatch(text) else markdown(text)


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are left-aligned and the others right-aligned.

    Cells are not padded, so that a changed number changes one line of a page only.
    """
    rule = [":--" if place < left else "--:" for place in range(len(headings))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (headings, rule, *rows))


def file_name(text: str) -> str:
    """The text as a file name that every system accepts, such as `module%3Aname`.

    >>> file_name("a/b"), file_name("a%2Fb"), file_name("con.txt"), file_name("end.")
    ('a%2Fb', 'a%252Fb', '%63on.txt', 'end%2E')
    """
    name = NOT_IN_FILE_NAMES.sub(lambda found: f"%{ord(found[0]):02X}", text)
    return f"%{ord(name[0]):02X}{name[1:]}" if RESERVED.match(name) else name


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 order, 2 orders."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
