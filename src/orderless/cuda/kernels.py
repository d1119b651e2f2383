"""The Triton kernels of `fused.py`.

Pointers come first, then sizes and strides; arguments in capitals are constants of the compilation.
Numbers that are multiplied by a stride or by the number of particles are 64-bit integers, because
many particles can have more than 2^31 entries, and a view may have any strides.
"""

import triton
import triton.language as tl


@triton.jit
def _scrambled(bits):
    # `random.mix` of unsigned 32-bit integers
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _uniform(key, element):
    # `random.uniform`'s entry number `element`
    bits = _scrambled(_scrambled((element.to(tl.uint32) * 0x9E3779B9) ^ key) + key)
    return ((bits >> 8).to(tl.float32) + 0.5) * (1.0 / 16777216.0)


@triton.jit
def add_normal(parameter, keys, radius, count, half, BLOCK: tl.constexpr):
    # parameter[n] += radius[n] * random.normal(keys[n], [count]): a pair of entries, half apart
    n = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key, scale = tl.load(keys + n).to(tl.uint32, bitcast=True), tl.load(radius + n)
    length = scale * tl.sqrt(-2.0 * tl.log(_uniform(key, j)))
    angle = 6.283185307179586 * _uniform(key, j + half)
    first, second = parameter + n * count + j, parameter + n * count + half + j
    here, there = j < half, j + half < count
    tl.store(first, tl.load(first, mask=here) + length * tl.cos(angle), mask=here)
    tl.store(second, tl.load(second, mask=there) + length * tl.sin(angle), mask=there)


@triton.jit
def cross_entropy(
    logits, labels, upstream, result, batch, classes, logits_n, logits_b,
    BACKWARD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    r, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    label = tl.load(labels + r, mask=r < batch, other=-100)
    counts = label != -100  # what F.cross_entropy ignores
    number = tl.sum(counts.to(tl.float32), 0)
    inside = (r[:, None] < batch) & (c[None, :] < classes)
    place = n * logits_n + r[:, None].to(tl.int64) * logits_b + c[None, :]
    z = tl.load(logits + place, mask=inside, other=-float("inf"))
    top = tl.max(tl.where(inside, z, -float("inf")), 1)
    top = tl.where(r < batch, top, 0.0)
    shares = tl.exp(z - top[:, None])
    total = tl.where(r < batch, tl.sum(shares, 1), 1.0)
    target = c[None, :] == label[:, None]
    if BACKWARD:
        slope = tl.load(upstream + n) / number
        gradient = (shares / total[:, None] - target.to(tl.float32)) * slope
        gradient = tl.where(counts[:, None], gradient, 0.0)
        place = (n * batch + r[:, None]) * classes + c[None, :]
        tl.store(result + place, gradient, mask=inside)
    else:
        chosen = tl.sum(tl.where(target, z, 0.0), 1)
        losses = tl.where(counts, top + tl.log(total) - chosen, 0.0)
        # the loss of a label outside of the classes is NaN
        wrong = counts & ((label < 0) | (label >= classes))
        losses = tl.where(wrong, float("nan"), losses)
        tl.store(result + n, tl.sum(losses, 0) / number)


@triton.jit
def reweigh(
    log_likelihood, candidates, log_weights, log_evidence, alive, failed, steps, n,
    BLOCK: tl.constexpr,
):  # fmt: skip
    infinity = float("inf")
    i = tl.arange(0, BLOCK)
    inside = i < n
    gain = tl.load(log_likelihood + i, mask=inside, other=infinity)
    lives = (tl.load(candidates + i, mask=inside, other=0) != 0) & (tl.abs(gain) < infinity)
    grown = tl.load(log_weights + i, mask=inside, other=0.0) + tl.where(lives, gain, 0.0)
    grown = tl.where(lives, grown, -infinity)
    top = tl.max(grown, 0)
    if tl.abs(top) < infinity:
        total = top + tl.log(tl.sum(tl.exp(grown - top), 0))
        tl.store(log_weights + i, grown - total, mask=inside)
        tl.store(alive + i, lives.to(tl.uint8), mask=inside)
        tl.store(log_evidence, tl.load(log_evidence) + total)
        tl.store(steps, tl.load(steps) + 1)
    else:
        tl.store(failed, tl.full([], 1, tl.uint8))
