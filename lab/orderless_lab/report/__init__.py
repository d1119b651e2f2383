"""Tables, figures and verdicts on the paper's claims, from finished cells."""

from ..experiments.record import load_run
from .claims import judge_claims
from .collect import summarize
from .summary import MethodSummary, ReportError, Summary
from .tables import format_json, format_table
from .write import write_report

__all__ = [
    "MethodSummary", "ReportError", "Summary", "format_json", "format_table", "judge_claims",
    "load_run", "summarize", "write_report",
]  # fmt: skip
