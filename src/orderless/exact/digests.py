"""Whether two saved heads contain the same data: equal digests, and what they cover.

A head from which data were deleted and one that never had them have the same sums to the bit, and
keep the same samples. Then everything that can be computed from them is the same.
"""

from collections.abc import Mapping
from typing import Any

from ..io import digest

_SUMS = ("gram", "moments", "squares")


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """The number of samples and the SHA-256 of every part of the state of a head, or of what holds
    one: an estimator, or a file of `orderless fit`."""
    inner = state.get("head", state.get("filter", state))
    if not isinstance(inner, Mapping) or not {"fingerprint", "sums", "particles"} <= inner.keys():
        raise ValueError("this is no saved exact head, and nothing that holds one")
    around = {
        name: value for name, value in state.items() if name not in ("head", "filter", "calls_")
    }
    sums = inner["sums"] or {}
    if not isinstance(sums, Mapping):
        raise ValueError(f"the sums of a head cannot be {sums!r}")
    covered = {
        "kind of maps and grid": inner["fingerprint"],
        "maps": inner["particles"],
        "classes and scales": inner["targets"] if inner is state else around,
        "columns": sums.get("columns"),
        **{name: sums.get(name) for name in _SUMS},
        "kept samples": sums.get("kept"),
        "ledger": sums.get("ledger"),
    }
    counts = {name: str(sums.get(name, 0)) for name in ("samples", "clipped")}
    return {**counts, **{name: digest(value) for name, value in covered.items()}}
