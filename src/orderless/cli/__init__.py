"""The command line, one file per command."""

from .main import app

__all__ = ["app"]
