"""Turns finished cells into tables, figures and verdicts on the paper's claims."""

from orderless.report.cells import ReportError, load_cells
from orderless.report.claims import judge_claims
from orderless.report.collect import summarize
from orderless.report.tables import format_json, format_table
from orderless.report.write import write_report

__all__ = [
    "ReportError",
    "format_json",
    "format_table",
    "judge_claims",
    "load_cells",
    "summarize",
    "write_report",
]
