"""Whether two saved heads contain the same data: equal digests, and what they cover.

A head from which data were deleted and one that never had them have the same sums to the bit, and
keep the same samples. Then everything that can be computed from them is the same.
"""

from collections.abc import Mapping
from typing import Any

from ..io import digest


def digests(state: Mapping[str, Any]) -> dict[str, str]:
    """The number of samples and the SHA-256 of every part of the state of a head, or of what holds
    one: an estimator, or a file of `orderless fit`."""
    head = state.get("head", state)
    if not isinstance(head, Mapping) or not {"basis", "sums", "particles"} <= head.keys():
        raise ValueError("this is no saved exact head, and nothing that holds one")
    around = {name: value for name, value in state.items() if name != "head"}
    sums = dict(head["sums"] or {"samples": 0})
    covered = {
        "kind of maps and grid": head["basis"],
        "maps": head["particles"],
        "classes and scales": {} if head is state else around,
        **sums,
    }
    return {
        name: str(value) if name == "samples" else digest(value) for name, value in covered.items()
    }
