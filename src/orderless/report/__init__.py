"""Turns finished cells into tables, figures and verdicts on the paper's claims."""

from .cells import ReportError, load_cells
from .claims import judge_claims
from .collect import summarize
from .tables import format_json, format_table
from .write import write_report

__all__ = [
    "ReportError",
    "format_json",
    "format_table",
    "judge_claims",
    "load_cells",
    "summarize",
    "write_report",
]
