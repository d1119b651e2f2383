"""Tables, figures and verdicts on the paper's claims, from finished cells."""

from .frame import ReportError, load
from .summary import Summary, summarize
from .tables import format_table
from .write import write_report

__all__ = [
    "ReportError", "Summary", "format_table", "load", "summarize", "write_report",
]  # fmt: skip
