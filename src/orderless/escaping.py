"""Escaping of names that users choose, for terminals, Markdown, spreadsheets and file names."""

import re

MARKDOWN = {ord(letter): f"\\{letter}" for letter in "\\`*_[]|#"}
MARKDOWN |= {ord(letter): f"&#{ord(letter)};" for letter in "&<$~"}
PLAIN_CODE = re.compile(r"[\w+.,=()-]+( [\w+.,=()-]+)*", re.ASCII)
NOT_IN_FILE_NAMES = re.compile(r'[<>:"/\\|?*]')  # on one system or another
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)
FORMULA = ("=", "+", "-", "@")  # a spreadsheet evaluates a cell that begins with one of these


def printable(text: str) -> str:
    """The text with control characters, line breaks and changes of direction as escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def markdown(text: str) -> str:
    """The text for Markdown, also in a table, with markup and HTML escaped."""
    return printable(text).translate(MARKDOWN)


def markdown_code(text: str) -> str:
    """The text in backticks, or escaped if it has characters that backticks cannot hold."""
    return f"`{text}`" if PLAIN_CODE.fullmatch(text) else markdown(text)


def csv_cell(text: str) -> str:
    """The text for a CSV cell; a quote before it prevents its evaluation as a formula.

    A number such as the label -1 is no formula.
    """
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def file_name(text: str) -> str:
    """The text as a file name that every system accepts, such as `module%3Aname`."""
    return NOT_IN_FILE_NAMES.sub(lambda found: f"%{ord(found[0]):02X}", text)
