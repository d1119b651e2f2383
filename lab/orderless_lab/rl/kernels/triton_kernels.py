"""The Triton kernels of `grouped.py`, `shared.py` and `pooling.py`.

Pointers come first, then sizes and strides; arguments in capitals are constants of the compilation.
Numbers that are multiplied by a stride or by the number of particles are 64-bit integers, because
many particles can have more than 2^31 entries, and a view may have any strides.
"""

import triton
import triton.language as tl


@triton.jit
def _under(
    b, row, column, tap,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BACKWARD: tl.constexpr,
):  # fmt: skip
    # the input under a tap of the filter at a position, and whether it is inside the image
    if BACKWARD:  # which output saw this input under the tap
        h = row + PAD_H - tap // KERNEL
        w = column + PAD_W - tap % KERNEL
        there = (h >= 0) & (w >= 0) & (h % STRIDE_H == 0) & (w % STRIDE_W == 0)
        h = h // STRIDE_H
        w = w // STRIDE_W
    else:
        h = row * STRIDE_H - PAD_H + tap // KERNEL
        w = column * STRIDE_W - PAD_W + tap % KERNEL
        there = (h >= 0) & (w >= 0)
    there = there & (h < HEIGHT) & (w < WIDTH)
    return (b * HEIGHT + h) * WIDTH + w, there


@triton.jit
def _within(place, size):
    # 0 <= place < size in one comparison
    return place.to(tl.uint32, bitcast=True) < size


@triton.jit
def _particle(N: tl.constexpr, TOGETHER: tl.constexpr):
    # a program's block of positions and its particle; TOGETHER: all particles of a block in turn
    block = tl.program_id(0)
    n = tl.program_id(1)
    if TOGETHER:
        n = block % N
        block = block // N
    return block, n.to(tl.int64)


@triton.jit
def _reaching(
    filters, k, shift_h, shift_w, o, columns,
    HEIGHT: tl.constexpr, KERNEL: tl.constexpr, WINDOW: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    # weights of the entries k of a window for a patch's outputs; 0 where a filter does not reach
    line = (k // IN // WINDOW)[:, None] - shift_h[None, :]
    tap = (k // IN % WINDOW)[:, None] - shift_w[None, :]
    reached = _within(line, HEIGHT) & _within(tap, KERNEL) & columns[None, :]
    entry = (line * KERNEL + tap) * IN + (k % IN)[:, None]
    return tl.load(filters + (entry * OUT + o[None, :]), mask=reached, other=0.0)


@triton.jit
def gather(
    source, weight, bias, signs, added, result, patches,
    N: tl.constexpr, TAPS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    FROM_H: tl.constexpr, FROM_W: tl.constexpr, TO_H: tl.constexpr, TO_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, BACKWARD: tl.constexpr, HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr, HAS_SIGNS: tl.constexpr, HAS_ADDED: tl.constexpr, PRECISION: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, TOGETHER: tl.constexpr, SPAN: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[m, n, o] = sum over k = (tap, i) of source[under(m, tap), n, i] weight[n, k, o] + bias,
    # or 0 where it (RELU) or `signs` is negative; and `added` on top.
    # A row m of the product is a patch of HIGH x WIDE neighbours, its columns j are (position in
    # the patch, o). Their filters look at one window: k = (place in it, i), and where a neighbour's
    # filter does not reach, its weight is 0. SPAN blocks of rows one after another: if the weights
    # are one piece, they stay.
    block, n = _particle(N, TOGETHER)
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    o = j % OUT
    down = j // OUT // WIDE
    right = j // OUT % WIDE
    columns = j < HIGH * WIDE * OUT
    LINES: tl.constexpr = TO_H // HIGH
    LINE: tl.constexpr = TO_W // WIDE
    WINDOW: tl.constexpr = KERNEL + WIDE - 1
    HEIGHT: tl.constexpr = TAPS // KERNEL
    ENTRIES: tl.constexpr = (HEIGHT + HIGH - 1) * WINDOW * IN
    # gradients run in the other direction: from the last neighbour to the first
    shift_h, shift_w = (HIGH - 1 - down, WIDE - 1 - right) if BACKWARD else (down, right)
    MARGIN_H: tl.constexpr = PAD_H + (HIGH - 1 if BACKWARD else 0)
    MARGIN_W: tl.constexpr = PAD_W + (WIDE - 1 if BACKWARD else 0)
    filters = weight + n * TAPS * IN * OUT
    if INNER >= ENTRIES:
        slopes = _reaching(
            filters, tl.arange(0, INNER), shift_h, shift_w, o, columns,
            HEIGHT, KERNEL, WINDOW, IN, OUT,
        )  # fmt: skip
    for step in range(SPAN):
        m = (block * SPAN + step) * ROWS + tl.arange(0, ROWS)
        b = m // (LINES * LINE)
        row = m // LINE % LINES * HIGH
        column = m % LINE * WIDE
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, ENTRIES, INNER):
            k = start + tl.arange(0, INNER)
            if IN % INNER == 0:  # one place at a time
                place, there = _under(
                    b[:, None], row[:, None], column[:, None], start // IN, FROM_H, FROM_W, WINDOW,
                    STRIDE_H, STRIDE_W, MARGIN_H, MARGIN_W, BACKWARD,
                )  # fmt: skip
            else:
                place, there = _under(
                    b[:, None], row[:, None], column[:, None], (k // IN)[None, :], FROM_H, FROM_W,
                    WINDOW, STRIDE_H, STRIDE_W, MARGIN_H, MARGIN_W, BACKWARD,
                )  # fmt: skip
            there = there & (m[:, None] < patches) & (k[None, :] < ENTRIES)
            seen = source + (place.to(tl.int64) * N + n) * IN
            values = tl.load(seen + (k % IN)[None, :], mask=there, other=0.0)
            if INNER < ENTRIES:
                slopes = _reaching(
                    filters, k, shift_h, shift_w, o, columns, HEIGHT, KERNEL, WINDOW, IN, OUT
                )
            total = tl.dot(values, slopes, total, input_precision=PRECISION)
        inside = (m[:, None] < patches) & columns[None, :]
        if HAS_BIAS:
            total += tl.load(bias + n * OUT + o).to(tl.float32)[None, :]
        position = (b * TO_H + row)[:, None] + down[None, :]
        position = position * TO_W + column[:, None] + right[None, :]
        place = (position.to(tl.int64) * N + n) * OUT + o[None, :]
        if RELU:
            total = tl.where(total < 0.0, 0.0, total)  # NaN stays NaN
        if HAS_SIGNS:
            total = tl.where(tl.load(signs + place, mask=inside, other=0.0) <= 0.0, 0.0, total)
        if HAS_ADDED:
            total += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(result + place, total.to(result.dtype.element_ty), mask=inside)


@triton.jit
def filters(
    source, slope, result, patches,
    N: tl.constexpr, TAPS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    FROM_H: tl.constexpr, FROM_W: tl.constexpr, TO_H: tl.constexpr, TO_W: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, SHARE: tl.constexpr, PRECISION: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, TOGETHER: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[part, n, k, j] = sum over m in part of source[m, n, k] slope[m, n, j] with patches m,
    # k = (place in the window, i) and j = (position in the patch, o) as in `gather`; and in one
    # more row that of the slopes alone, which is the bias's
    part, n = _particle(N, TOGETHER)
    WINDOW: tl.constexpr = KERNEL + WIDE - 1
    ENTRIES: tl.constexpr = (TAPS // KERNEL + HIGH - 1) * WINDOW * IN
    OUTPUTS: tl.constexpr = HIGH * WIDE * OUT
    LINES: tl.constexpr = TO_H // HIGH
    LINE: tl.constexpr = TO_W // WIDE
    across = (OUTPUTS + COLUMNS - 1) // COLUMNS
    k = (tl.program_id(2) // across) * INNER + tl.arange(0, INNER)
    j = (tl.program_id(2) % across) * COLUMNS + tl.arange(0, COLUMNS)
    down = k // IN // WINDOW - PAD_H
    right = k // IN % WINDOW - PAD_W
    aside = (down * FROM_W + right) * N * IN + k % IN
    next_to = (j // OUT // WIDE * TO_W + j // OUT % WIDE) * N * OUT + j % OUT
    total = tl.zeros([INNER, COLUMNS], tl.float32)
    slopes_alone = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, SHARE, ROWS):
        m = part * SHARE + start + tl.arange(0, ROWS)
        b = m // (LINES * LINE)
        row = m // LINE % LINES * HIGH
        column = m % LINE * WIDE
        h = row * STRIDE_H
        w = column * STRIDE_W
        place = (b * FROM_H + h) * FROM_W + w
        there = _within(h[:, None] + down[None, :], FROM_H)
        there = there & _within(w[:, None] + right[None, :], FROM_W)
        there = there & (m[:, None] < patches) & (k[None, :] < ENTRIES)
        seen = source + (place.to(tl.int64) * N + n) * IN
        values = tl.load(seen[:, None] + aside[None, :], mask=there, other=0.0)
        position = (b * TO_H + row) * TO_W + column
        rows = slope + (position.to(tl.int64) * N + n) * OUT
        slopes = tl.load(
            rows[:, None] + next_to[None, :],
            mask=(m[:, None] < patches) & (j[None, :] < OUTPUTS), other=0.0,
        )  # fmt: skip
        total = tl.dot(tl.trans(values), slopes, total, input_precision=PRECISION)
        slopes_alone += slopes
    base = result + (part * N + n) * (ENTRIES + 1) * OUTPUTS
    inside = (k[:, None] < ENTRIES) & (j[None, :] < OUTPUTS)
    tl.store(base + (k[:, None] * OUTPUTS + j[None, :]), total, mask=inside)
    if tl.program_id(2) // across == 0:
        tl.store(base + ENTRIES * OUTPUTS + j, tl.sum(slopes_alone, 0), mask=j < OUTPUTS)


@triton.jit
def _patch(
    source, m, k, positions, batch_stride, channel_stride, row_stride, column_stride,
    IN: tl.constexpr, INNER: tl.constexpr, FROM_H: tl.constexpr, FROM_W: tl.constexpr,
    TO_H: tl.constexpr, TO_W: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
):  # fmt: skip
    # what the filter covers at the positions m [ROWS, 1], entries k [1, INNER]; then a 1, and 0s
    h = (m // TO_W) % TO_H * STRIDE_H
    w = m % TO_W * STRIDE_W
    down = k // IN // KERNEL - PAD_H
    right = k // IN % KERNEL - PAD_W
    there = _within(h + down, FROM_H) & _within(w + right, FROM_W) & (k < INNER) & (m < positions)
    image = (m // (TO_H * TO_W)).to(tl.int64)
    h = h.to(tl.int64)
    w = w.to(tl.int64)
    channel = (k % IN).to(tl.int64)
    down = down.to(tl.int64)
    right = right.to(tl.int64)
    rows = source + image * batch_stride + h * row_stride + w * column_stride
    aside = channel * channel_stride + down * row_stride + right * column_stride
    values = tl.load(rows + aside, mask=there, other=0.0)
    return tl.where((k == INNER) & (m < positions), 1.0, values).to(source.dtype.element_ty)


@triton.jit
def spread(
    source, weight, result, positions,
    batch_stride, channel_stride, row_stride, column_stride,
    OUT: tl.constexpr, IN: tl.constexpr, INNER: tl.constexpr, FROM_H: tl.constexpr,
    FROM_W: tl.constexpr, TO_H: tl.constexpr, TO_W: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[m, o] = sum over k of patch[m, k] weight[k, o], a patch fetched once for all outputs
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, ENTRIES)
    patch = _patch(
        source, m[:, None], k[None, :], positions,
        batch_stride, channel_stride, row_stride, column_stride,
        IN, INNER, FROM_H, FROM_W, TO_H, TO_W, KERNEL, STRIDE_H, STRIDE_W, PAD_H, PAD_W,
    )  # fmt: skip
    rows = result + m[:, None].to(tl.int64) * OUT
    for start in range(0, OUT, COLUMNS):
        o = start + tl.arange(0, COLUMNS)
        slopes = tl.load(
            weight + (k[:, None] * OUT + o[None, :]),
            mask=(k[:, None] <= INNER) & (o[None, :] < OUT), other=0.0,
        )  # fmt: skip
        total = tl.dot(patch, slopes, input_precision=PRECISION)
        inside = (m[:, None] < positions) & (o[None, :] < OUT)
        tl.store(rows + o[None, :], total.to(result.dtype.element_ty), mask=inside)


@triton.jit
def spread_filters(
    source, slope, result, positions,
    batch_stride, channel_stride, row_stride, column_stride,
    OUT: tl.constexpr, IN: tl.constexpr, INNER: tl.constexpr, FROM_H: tl.constexpr,
    FROM_W: tl.constexpr, TO_H: tl.constexpr, TO_W: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    SHARE: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[part, k, o] = sum over m in part of patch[m, k] slope[m, o]
    part = tl.program_id(0)
    o = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, ENTRIES)
    total = tl.zeros([ENTRIES, COLUMNS], tl.float32)
    for start in range(0, SHARE, ROWS):
        m = part * SHARE + start + tl.arange(0, ROWS)
        patch = _patch(
            source, m[None, :], k[:, None], positions,
            batch_stride, channel_stride, row_stride, column_stride,
            IN, INNER, FROM_H, FROM_W, TO_H, TO_W, KERNEL, STRIDE_H, STRIDE_W, PAD_H, PAD_W,
        )  # fmt: skip
        slopes = tl.load(
            slope + m[:, None].to(tl.int64) * OUT + o[None, :],
            mask=(m[:, None] < positions) & (o[None, :] < OUT), other=0.0,
        )  # fmt: skip
        total = tl.dot(patch, slopes, total, input_precision=PRECISION)
    place = result + (part * (INNER + 1) + k[:, None]).to(tl.int64) * OUT + o[None, :]
    tl.store(place, total, mask=(k[:, None] <= INNER) & (o[None, :] < OUT))


@triton.jit
def largest(
    source, result, winners, positions, channels,
    TAPS: tl.constexpr, FROM_H: tl.constexpr, FROM_W: tl.constexpr,
    TO_H: tl.constexpr, TO_W: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    REMEMBER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[m, c] = max over taps of source[under(m, tap), c]; winners: which tap it was
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    h = (m // TO_W) % TO_H * STRIDE_H - PAD_H
    w = m % TO_W * STRIDE_W - PAD_W
    first = (m // (TO_H * TO_W) * FROM_H + h) * FROM_W + w
    seen = source + first.to(tl.int64)[:, None] * channels + c[None, :]
    inside = (m[:, None] < positions) & (c[None, :] < channels)
    best = tl.full([ROWS, COLUMNS], -float("inf"), source.dtype.element_ty)
    # as in torch: the first of equals (if all are -inf, the first tap that is inside), the last NaN
    earliest = tl.maximum(-h, 0) * KERNEL + tl.maximum(-w, 0)
    winner = tl.zeros([ROWS, COLUMNS], tl.int32) + earliest[:, None]
    for tap in tl.static_range(TAPS):
        there = _within(h + tap // KERNEL, FROM_H) & _within(w + tap % KERNEL, FROM_W)
        values = tl.load(
            seen + (tap // KERNEL * FROM_W + tap % KERNEL) * channels,
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
    HEIGHT: tl.constexpr, FROM_H: tl.constexpr, FROM_W: tl.constexpr,
    TO_H: tl.constexpr, TO_W: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # result[m, c] = sum of the slopes of the windows over m that took their maximum from it
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = (m // TO_W) % TO_H + PAD_H
    column = m % TO_W + PAD_W
    h, w = row // STRIDE_H, column // STRIDE_W  # the last window that may cover m
    last = ((m // (TO_H * TO_W) * FROM_H + h) * FROM_W + w).to(tl.int64)[:, None] * channels
    inside = (m[:, None] < positions) & (c[None, :] < channels)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for down in tl.static_range((HEIGHT + STRIDE_H - 1) // STRIDE_H):
        for right in tl.static_range((KERNEL + STRIDE_W - 1) // STRIDE_W):
            tap_h = row % STRIDE_H + down * STRIDE_H
            tap_w = column % STRIDE_W + right * STRIDE_W
            there = _within(h - down, FROM_H) & _within(w - right, FROM_W)
            there = there & (tap_h < HEIGHT) & (tap_w < KERNEL)
            seen = inside & there[:, None]
            place = last + c[None, :] - (down * FROM_W + right) * channels
            winner = tl.load(winners + place, mask=seen, other=255)
            slopes = tl.load(slope + place, mask=seen, other=0.0).to(tl.float32)
            total += tl.where(winner == (tap_h * KERNEL + tap_w)[:, None], slopes, 0.0)
    place = m[:, None].to(tl.int64) * channels + c[None, :]
    tl.store(result + place, total.to(result.dtype.element_ty), mask=inside)
