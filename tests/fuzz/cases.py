"""Cases for the fuzz: files that were changed, contents that make no sense, and what is watched.

Every case runs in this process: nothing may hang, take memory that its file does not have, or raise
anything but the error that stands for a bad file.
"""

import os
import resource
import signal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MORE = int(os.environ.get("ORDERLESS_FUZZ", "1"))  # times as many cases, and others every time
SECONDS = 30  # a case takes milliseconds
MEMORY = 2**29  # bytes that all cases of a reader together may add


def fuzz(record_property, name: str, count: int, check, *strategies, also=()) -> None:
    """Calls `check` with `count` cases, the same ones every time unless more are asked for.

    And with those of `also`. None may hang, and all together must stay within memory.
    """
    number, before = 0, peak()

    def one(case):
        nonlocal number
        number += 1
        others = signal.signal(signal.SIGALRM, too_long)
        signal.alarm(SECONDS)
        try:
            check(*case)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, others)

    @settings(
        max_examples=count * MORE,
        derandomize=MORE == 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*strategies))
    def every(case):
        one(case)

    try:
        every()
        for case in also:
            one(case)
    finally:
        record_property(f"fuzz: {name}", number)
    assert peak() - before < MEMORY


def peak() -> int:
    """Bytes, the most that this process ever had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def too_long(*_: object) -> None:
    raise AssertionError(f"a case took more than {SECONDS} s")


# ---------------------------------------------------------------------- bytes

NUMBERS = [b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8), b"\xff" * 4, b"\x80", b"9" * 20]
_edit = st.tuples(
    st.sampled_from(["flip", "cut", "end", "insert", "write", "repeat"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 64),
    st.one_of(st.sampled_from(NUMBERS), st.binary(max_size=16)),
)


def edited(whole: bytes):
    """A file with one to four changes, or bytes that have nothing to do with it."""
    return st.one_of(
        st.lists(_edit, min_size=1, max_size=4).map(lambda edits: _apply(whole, edits)),
        st.lists(_edit, min_size=1, max_size=4).map(lambda edits: _apply(whole[:256], edits)),
        st.binary(max_size=200),
    )


def _apply(data: bytes, edits) -> bytes:
    for kind, where, size, new in edits:
        place = int(where * len(data))
        if kind == "flip" and data:
            data = data[:place] + bytes([data[place] ^ 1 << size % 8]) + data[place + 1 :]
        elif kind == "cut":
            data = data[:place] + data[place + size :]
        elif kind == "end":
            data = data[:place]
        elif kind == "insert":
            data = data[:place] + new + data[place:]
        elif kind == "write":
            data = data[:place] + new + data[place + len(new) :]
        elif kind == "repeat":
            data = data[:place] + data[place : place + size] * 20 + data[place:]
    return data


# ---------------------------------------------------------------------- values

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["</script>", "../..", "\x00", "accuracy", "A" * 2000, -1, 0, 1e308]),
)
anything = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def altered(draw, record):
    """A record in which something, anywhere, is something else or missing."""
    for _ in range(draw(st.integers(1, 2))):
        record = _alter(draw, record, depth=draw(st.integers(0, 3)))
    return record


def _alter(draw, value, depth):
    if depth and isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value, key=str)))
        return {**value, key: _alter(draw, value[key], depth - 1)}
    if depth and isinstance(value, list) and value:
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _alter(draw, value[place], depth - 1), *value[place + 1 :]]
    if isinstance(value, dict) and value and draw(st.booleans()):
        gone = draw(st.sampled_from(sorted(value, key=str)))
        return {key: item for key, item in value.items() if key != gone}
    return draw(anything)
