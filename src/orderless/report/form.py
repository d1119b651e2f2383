"""What a cell must look like before anything is computed from it.

A checksum says that a file is as it was written, not that somebody wrote sense. Parts that are not
listed here are never read by a report.
"""

from __future__ import annotations

from typing import Any

NUMBER, TEXT = (int, float), (str,)
NUMBERS = [NUMBER]
LABELLED = {str: NUMBERS}  # any names

MEASURED = {who: {"mean": NUMBER, "standard_error": NUMBER} for who in ("expert", "random")}
EXPERT: dict[str, Any] = {
    **dict.fromkeys(("network", "digest"), TEXT),
    **dict.fromkeys(("steps", "levels"), (int,)),
    "returns": {"training": MEASURED, "held_out": MEASURED},
    "level_returns": NUMBERS,
}

CELL: dict[str, Any] = {
    **dict.fromkeys(("benchmark", "scenario", "preset", "method", "score_kind"), TEXT),
    **dict.fromkeys(("device", "command"), TEXT),
    **dict.fromkeys(("order_index", "seed", "particles", "alive", "died_at"), (int,)),
    **dict.fromkeys(("log_evidence", "temperature", "duration", "scoring_duration"), NUMBER),
    "order": [(int,)],
    "scores": {str: [NUMBERS]},
    **dict.fromkeys(("nll", "ece"), NUMBERS),
    **dict.fromkeys(("task_names", "predictions"), [TEXT]),
    **dict.fromkeys(("trace", "plasticity", "curves"), LABELLED),
    "settings": {},
    "expert": EXPERT,
    "versions": {str: TEXT},
}


def misfit(value: Any, form: Any, name: str = "") -> str | None:
    """The name of the first part that is not of its form, or None.

    A form is a tuple of types, `[form]` for a list, `{str: form}` for parts of any name, or a
    dictionary of those that are known. Null stands for a number that is not finite, and for a part
    that is not there.
    """
    if isinstance(form, tuple):
        fits = isinstance(value, form) and not isinstance(value, bool)
        return None if fits or (value is None and form is NUMBER) else name
    if not isinstance(value, type(form)):
        return name
    if isinstance(form, list):
        parts = [(item, form[0], name) for item in value]
    elif str in form:
        parts = [(item, form[str], f"{name}.{key}") for key, item in value.items()]
    else:
        known = [key for key in form if value.get(key) is not None]
        parts = [(value[key], form[key], f"{name}.{key}") for key in known]
    return next((found for part in parts if (found := misfit(*part))), None)
