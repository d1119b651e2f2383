"""`python -m orderless` is the command line."""

from .cli.main import app

app(prog_name="orderless")
