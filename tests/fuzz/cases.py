"""Cases for the fuzz: files that were changed, contents that make no sense, and what is watched.

Every case runs in this process: nothing may hang, or raise anything but the error that stands for a
bad file.
"""

import os
import signal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MORE = int(os.environ.get("ORDERLESS_FUZZ", "1"))  # times as many cases, and others every time
SECONDS = 30  # a case takes milliseconds


def fuzz(record_property, name: str, count: int, check, *strategies) -> None:
    """Call `check` with `count` cases, the same ones every time unless more are asked for."""
    number = 0

    @settings(
        max_examples=count * MORE,
        derandomize=MORE == 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*strategies))
    def every(case):
        nonlocal number
        number += 1
        others = signal.signal(signal.SIGALRM, too_long)
        signal.alarm(SECONDS)
        try:
            check(*case)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, others)

    try:
        every()
    finally:
        record_property(f"fuzz: {name}", number)


def too_long(*_: object) -> None:
    raise AssertionError(f"a case took more than {SECONDS} s")


NUMBERS = [b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8), b"\xff" * 4, b"\x80", b"9" * 20]
_edit = st.tuples(
    st.sampled_from(["cut", "end", "write", "repeat"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 64),
    st.one_of(st.sampled_from(NUMBERS), st.binary(max_size=16)),
)


def edited(whole: bytes):
    """A file with one to four changes, or bytes that have nothing to do with it."""
    changes = st.lists(_edit, min_size=1, max_size=4)
    return st.one_of(changes.map(lambda edits: _apply(whole, edits)), st.binary(max_size=200))


def _apply(data: bytes, edits) -> bytes:
    for kind, where, size, new in edits:
        place = int(where * len(data))
        before, after = data[:place], data[place:]
        changed = {
            "cut": before + after[size:],
            "end": before,
            "write": before + new + after[len(new) :],
            "repeat": before + after[:size] * 20 + after,
        }
        data = changed[kind]
    return data


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
