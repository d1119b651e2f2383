"""The command line, one file per command. What a command needs is imported when it runs."""

import sys
from io import TextIOWrapper


def app() -> None:
    """Run the command `orderless`; if the extra `cli` is not installed, name it and exit."""
    try:
        from .main import app as commands
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"orderless: the command line needs {error.name}: run pip install 'orderless[cli]'"
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names that its encoding lacks become escapes
            stream.reconfigure(errors="backslashreplace")
    commands(prog_name="orderless")
