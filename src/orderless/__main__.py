"""`python -m orderless` is the command line."""

from .cli import app

app()
