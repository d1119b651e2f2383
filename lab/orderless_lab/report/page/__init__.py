"""The report as one HTML page that opens from disk and makes no network requests."""

from .data import page_data
from .render import render, write_page

__all__ = ["page_data", "render", "write_page"]
