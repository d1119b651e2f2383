"""Cases for the fuzz: files that were changed, and contents that make no sense.

Every case runs in this process: nothing may raise anything but the error that stands for a bad
file or bad words.
"""

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MORE = int(os.environ.get("ORDERLESS_FUZZ", "1"))  # times as many cases, and others every time


def fuzz(count: int, check, *strategies) -> None:
    """Call `check` with `count` cases, the same ones every time unless more are asked for."""
    options = settings(
        max_examples=count * MORE,
        derandomize=MORE == 1,
        database=None,
        deadline=30_000,  # milliseconds; a case takes some of them
        suppress_health_check=list(HealthCheck),
    )
    options(given(*strategies)(check))()


NUMBERS = [b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8), b"\x80", b"9" * 20]
EDIT = st.tuples(
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 64),
    st.one_of(st.sampled_from(NUMBERS), st.binary(max_size=16)),
)


def edited(whole: bytes):
    """A file with one to four parts replaced, or bytes that have nothing to do with it."""
    edits = st.lists(EDIT, min_size=1, max_size=4)
    return st.one_of(edits.map(lambda edits: applied(whole, edits)), st.binary(max_size=200))


def applied(data: bytes, edits) -> bytes:
    for where, size, new in edits:
        place = int(where * len(data))
        data = data[:place] + new + data[place + size :]
    return data
