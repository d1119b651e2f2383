"""The Triton kernels of `convolution.py` and `pooling.py`.

Pointers come first, then sizes; arguments in capitals are constants of the compilation. Numbers
that are multiplied by the number of particles are 64-bit integers, because many particles can have
more than 2^31 entries.
"""

import triton
import triton.language as tl


@triton.jit
def _within(place, size):
    # 0 <= place < size in one comparison
    return place.to(tl.uint32, bitcast=True) < size


@triton.jit
def _first(m, H: tl.constexpr, W: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    # row, column and position of the first output of each patch m
    row = m // (W // WIDE) % (H // HIGH) * HIGH
    column = m % (W // WIDE) * WIDE
    return row, column, (m // (H // HIGH * (W // WIDE)) * H + row) * W + column


@triton.jit
def _inputs(
    source, n, m, k, place, patches,
    N: tl.constexpr, IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    # the entries k = (place, i) of the windows under the patches m, 0 outside of the image; `place`
    # is k // IN, or one number for all k
    WINDOW: tl.constexpr = WIDE + 2
    ENTRIES: tl.constexpr = (HIGH + 2) * WINDOW * IN
    row, column, position = _first(m, H, W, HIGH, WIDE)
    line = place // WINDOW - 1
    tap = place % WINDOW - 1
    there = _within(row[:, None] + line, H) & _within(column[:, None] + tap, W)
    there = there & (m[:, None] < patches) & (k[None, :] < ENTRIES)
    aside = (line * W + tap) * N * IN + (k % IN)[None, :]
    seen = source + (position.to(tl.int64) * N + n) * IN
    return tl.load(seen[:, None] + aside, mask=there, other=0.0)


@triton.jit
def _weights(
    filters, k, down, right, j, IN: tl.constexpr, OUT: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    # weights of the entries k of a window for a patch's outputs j; 0 where a filter does not reach
    WINDOW: tl.constexpr = WIDE + 2
    line = (k // IN // WINDOW)[:, None] - down[None, :]
    tap = (k // IN % WINDOW)[:, None] - right[None, :]
    reached = _within(line, 3) & _within(tap, 3) & (j < HIGH * WIDE * OUT)[None, :]
    entry = (line * 3 + tap) * IN + (k % IN)[:, None]
    return tl.load(filters + (entry * OUT + (j % OUT)[None, :]), mask=reached, other=0.0)


@triton.jit
def convolve(
    source, weight, bias, result, patches,
    N: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[m, n, o] = sum over k = (tap, i) of source[under(m, tap), n, i] weight[n, k, o] + bias.
    # A row m of the product is a patch of HIGH x WIDE neighbours, its columns j are (position in
    # the patch, o). Their filters look at one window: k = (place in it, i), and where a neighbour's
    # filter does not reach, its weight is 0. SPAN blocks of rows one after another: if the weights
    # are one piece, they stay.
    n = (tl.program_id(0) % N).to(tl.int64)
    block = tl.program_id(0) // N
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    down = j // OUT // WIDE
    right = j // OUT % WIDE
    beside = (down * W + right) * N * OUT + j % OUT
    ENTRIES: tl.constexpr = (HIGH + 2) * (WIDE + 2) * IN
    filters = weight + n * 9 * IN * OUT
    if INNER >= ENTRIES:
        slopes = _weights(filters, tl.arange(0, INNER), down, right, j, IN, OUT, HIGH, WIDE)
    for step in range(SPAN):
        m = (block * SPAN + step) * ROWS + tl.arange(0, ROWS)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, ENTRIES, INNER):
            k = start + tl.arange(0, INNER)
            # one place at a time, if it has enough entries
            place = start // IN if IN % INNER == 0 else (k // IN)[None, :]
            values = _inputs(source, n, m, k, place, patches, N, IN, H, W, HIGH, WIDE)
            if INNER < ENTRIES:
                slopes = _weights(filters, k, down, right, j, IN, OUT, HIGH, WIDE)
            total = tl.dot(values, slopes, total, input_precision=PRECISION)
        if HAS_BIAS:
            total += tl.load(bias + n * OUT + j % OUT).to(tl.float32)[None, :]
        inside = (m[:, None] < patches) & (j < HIGH * WIDE * OUT)[None, :]
        _, _, position = _first(m, H, W, HIGH, WIDE)
        rows = result + (position.to(tl.int64) * N + n) * OUT
        answer = total.to(result.dtype.element_ty)
        tl.store(rows[:, None] + beside[None, :], answer, mask=inside)


@triton.jit
def filters(
    source, slope, result, patches,
    N: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    PRECISION: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, SHARE: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[part, n, k, j] = sum over m in part of source[m, n, k] slope[m, n, j] with patches m,
    # k = (place in the window, i) and j = (position in the patch, o) as in `convolve`; and in one
    # more row that of the slopes alone, which is the bias's
    n = (tl.program_id(0) % N).to(tl.int64)
    part = tl.program_id(0) // N
    ENTRIES: tl.constexpr = (HIGH + 2) * (WIDE + 2) * IN
    OUTPUTS: tl.constexpr = HIGH * WIDE * OUT
    across = (OUTPUTS + COLUMNS - 1) // COLUMNS
    k = (tl.program_id(1) // across) * INNER + tl.arange(0, INNER)
    j = (tl.program_id(1) % across) * COLUMNS + tl.arange(0, COLUMNS)
    beside = (j // OUT // WIDE * W + j // OUT % WIDE) * N * OUT + j % OUT
    total = tl.zeros([INNER, COLUMNS], tl.float32)
    slopes_alone = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, SHARE, ROWS):
        m = part * SHARE + start + tl.arange(0, ROWS)
        place = (k // IN)[None, :]
        values = _inputs(source, n, m, k, place, patches, N, IN, H, W, HIGH, WIDE)
        _, _, position = _first(m, H, W, HIGH, WIDE)
        rows = slope + (position.to(tl.int64) * N + n) * OUT
        inside = (m[:, None] < patches) & (j[None, :] < OUTPUTS)
        slopes = tl.load(rows[:, None] + beside[None, :], mask=inside, other=0.0)
        total = tl.dot(tl.trans(values), slopes, total, input_precision=PRECISION)
        slopes_alone += slopes
    base = result + (part * N + n) * (ENTRIES + 1) * OUTPUTS
    inside = (k[:, None] < ENTRIES) & (j[None, :] < OUTPUTS)
    tl.store(base + (k[:, None] * OUTPUTS + j[None, :]), total, mask=inside)
    if tl.program_id(1) // across == 0:
        tl.store(base + ENTRIES * OUTPUTS + j, tl.sum(slopes_alone, 0), mask=j < OUTPUTS)


@triton.jit
def largest(
    source, result, winners, positions, channels,
    FROM_H: tl.constexpr, FROM_W: tl.constexpr, TO_H: tl.constexpr, TO_W: tl.constexpr,
    REMEMBER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[m, c] = max over taps of source[under(m, tap), c]; winners: which of the 3 x 3 it was
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    h = (m // TO_W) % TO_H * 2 - 1
    w = m % TO_W * 2 - 1
    first = (m // (TO_H * TO_W) * FROM_H + h) * FROM_W + w
    seen = source + first.to(tl.int64)[:, None] * channels + c[None, :]
    inside = (m[:, None] < positions) & (c[None, :] < channels)
    best = tl.full([ROWS, COLUMNS], -float("inf"), source.dtype.element_ty)
    # as in torch: the first of equals (if all are -inf, the first tap that is inside), the last NaN
    earliest = tl.maximum(-h, 0) * 3 + tl.maximum(-w, 0)
    winner = tl.zeros([ROWS, COLUMNS], tl.int32) + earliest[:, None]
    for tap in tl.static_range(9):
        there = _within(h + tap // 3, FROM_H) & _within(w + tap % 3, FROM_W)
        values = tl.load(
            seen + (tap // 3 * FROM_W + tap % 3) * channels,
            mask=inside & there[:, None], other=-float("inf"),
        )  # fmt: skip
        if REMEMBER:
            better = (values > best) | (values != values)
            winner = tl.where(better, tap, winner)
            best = tl.where(better, values, best)
        else:
            best = tl.maximum(best, values, propagate_nan=tl.PropagateNan.ALL)
    place = m[:, None].to(tl.int64) * channels + c[None, :]
    tl.store(result + place, best, mask=inside)
    if REMEMBER:
        tl.store(winners + place, winner.to(tl.uint8), mask=inside)


@triton.jit
def to_winners(
    slope, winners, result, positions, channels,
    FROM_H: tl.constexpr, FROM_W: tl.constexpr, TO_H: tl.constexpr, TO_W: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[m, c] = sum of the slopes of the windows over m that took their maximum from it
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = (m // TO_W) % TO_H + 1
    column = m % TO_W + 1
    h = row // 2  # the last of the at most 2 x 2 windows over m
    w = column // 2
    last = ((m // (TO_H * TO_W) * FROM_H + h) * FROM_W + w).to(tl.int64)[:, None] * channels
    inside = (m[:, None] < positions) & (c[None, :] < channels)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for window in tl.static_range(4):
        down = window // 2
        right = window % 2
        tap_h = row % 2 + down * 2
        tap_w = column % 2 + right * 2
        there = _within(h - down, FROM_H) & _within(w - right, FROM_W) & (tap_h < 3) & (tap_w < 3)
        seen = inside & there[:, None]
        place = last + c[None, :] - (down * FROM_W + right) * channels
        winner = tl.load(winners + place, mask=seen, other=255)
        slopes = tl.load(slope + place, mask=seen, other=0.0).to(tl.float32)
        total += tl.where(winner == (tap_h * 3 + tap_w)[:, None], slopes, 0.0)
    place = m[:, None].to(tl.int64) * channels + c[None, :]
    tl.store(result + place, total.to(result.dtype.element_ty), mask=inside)
