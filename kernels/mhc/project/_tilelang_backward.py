"""The gradients of x and phi from one read of x; also for composites whose x has other gradients to be added."""

import math

import tilelang.language as T
import torch
from tilelang.layout import make_swizzled_layout

from perflab.measure.tile_kernel import alloc_shared, dtype_name, for_c_target, multiprocessors, tile_kernel

#: Tokens of a step, whose products tensor cores add; threads of a block; steps on their way.
STEP = 16
THREADS = 256
STAGES = 3
#: Threads of a block that adds parts.
ADDERS = 128
#: The bits of a fp32 number that tf32 keeps.
TF32_BITS = 0xFFFFE000


@T.macro
def zero(fragment):
    """Every element 0; TileLang's own word for it does not know fragments on its C target."""
    for row, column in T.Parallel(fragment.shape[0], fragment.shape[1]):
        fragment[row, column] = 0


@tile_kernel()
def differentiate(n, C, dtype, want_x, want_phi, was_read, used_later):
    """Both gradients from one read of x: a block takes some columns of every stream and a range of the tokens.

    With `was_read`, x also has the gradient h_pre du of a weighted sum, and with `used_later` dx0 of its later uses; a
    tensor that is not wanted is not looked at.
    """
    tokens = T.dynamic("tokens", "int64")
    kept = T.dynamic("kept", "int64")
    K = n * n + 2 * n
    columns = math.ceil(K / 8) * 8
    exact = dtype != "float32"
    width = backward_width(n, C, dtype)
    rows = n * width
    # A list is unrolled before TileLang looks for copies to overlap; it would not find them in a loop of its own.
    streams = list(range(n))

    @T.prim_func
    def differentiate(
        x: T.Tensor((tokens, n, C), dtype),
        phi: T.Tensor((n, C, K), "float32"),
        r: T.Tensor((tokens,), "float32"),
        dm: T.Tensor((tokens, K), "float32"),
        dr: T.Tensor((tokens,), "float32"),
        dx0: T.Tensor((tokens, n, C), dtype),
        h_pre: T.Tensor((tokens, n), "float32"),
        du: T.Tensor((tokens, C), dtype),
        dx: T.Tensor((tokens, n, C), dtype),
        parts: T.Tensor((kept, n, C, K), "float32"),
        ranges: T.int32,
        length: T.int32,
    ):
        with T.Kernel(T.ceildiv(C, width), ranges, threads=THREADS) as (block, s):
            x_tile = alloc_shared((n, STEP, width), dtype)
            dm_tile = alloc_shared((STEP, columns), "float32")
            dm_high = alloc_shared((STEP, columns), "float32")
            dm_low = alloc_shared((STEP, columns), "float32")
            c0 = block * width
            first = s * length
            if want_x:
                phi_tile = alloc_shared((rows, columns), "float32")
                r_tile = alloc_shared((STEP,), "float32")
                dr_tile = alloc_shared((STEP,), "float32")
                scale = alloc_shared((STEP,), "float32")
                dx_tile = alloc_shared((n, STEP, width), dtype)
                gradient = T.alloc_fragment((STEP, rows), "float32")
                for w, k in T.Parallel(rows, columns):
                    inside = c0 + w % width < C and k < K
                    phi_tile[w, k] = T.if_then_else(inside, phi[w // width, c0 + w % width, k], 0.0)
                if used_later:
                    dx0_tile = alloc_shared((n, STEP, width), dtype)
                if was_read:
                    h_pre_tile = alloc_shared((STEP, n), "float32")
                    du_tile = alloc_shared((STEP, width), dtype)
            if want_phi:
                high = T.alloc_fragment((rows, STEP), "float32")
                low = T.alloc_fragment((rows, STEP), "float32")
                part = T.alloc_fragment((rows, columns), "float32")
                total = T.alloc_fragment((rows, columns), "float32")
                zero(total)
            if not for_c_target():
                # Threads read a column of eight rows at a time; unswizzled, those rows share their banks.
                T.annotate_layout({x_tile: make_swizzled_layout(x_tile)})
                if want_x and used_later:
                    T.annotate_layout({dx0_tile: make_swizzled_layout(dx0_tile)})
                if want_x and was_read:
                    T.annotate_layout({du_tile: make_swizzled_layout(du_tile)})
            for step in T.Pipelined(T.min(length, T.ceildiv(tokens, STEP) - first), num_stages=STAGES):
                t0 = (first + step) * STEP
                for i in streams:
                    T.copy(x[t0 : t0 + STEP, i, c0 : c0 + width], x_tile[i, :, :])
                T.copy(dm[t0, 0], dm_tile)
                if want_x:
                    T.copy(r[t0], r_tile)
                    T.copy(dr[t0], dr_tile)
                    if used_later:
                        for i in streams:
                            T.copy(dx0[t0 : t0 + STEP, i, c0 : c0 + width], dx0_tile[i, :, :])
                    if was_read:
                        T.copy(h_pre[t0, 0], h_pre_tile)
                        T.copy(du[t0, c0], du_tile)
                # tf32 keeps 11 of fp32's 24 significant bits: dm = high + low carries 22 of them.
                for t, k in T.Parallel(STEP, columns):
                    dm_high[t, k] = upper_bits(dm_tile[t, k])
                    dm_low[t, k] = dm_tile[t, k] - dm_high[t, k]
                if want_x:
                    # dx[t, w] = sum_k dm[t, k] phi[w, k] + dr[t] x[t, w] / (n C r[t]), w for all of i, c
                    for t in T.Parallel(STEP):
                        scale[t] = T.if_then_else(t0 + t < tokens, dr_tile[t] / (n * C * r_tile[t]), 0.0)
                    zero(gradient)
                    T.gemm(dm_low, phi_tile, gradient, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                    T.gemm(dm_high, phi_tile, gradient, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                    for t, w in T.Parallel(STEP, rows):
                        gradient[t, w] += scale[t] * T.cast(x_tile[w // width, t, w % width], "float32")
                    # dx[t, i, c] += dx0[t, i, c] + h_pre[t, i] du[t, c]
                    if used_later:
                        for t, w in T.Parallel(STEP, rows):
                            gradient[t, w] += T.cast(dx0_tile[w // width, t, w % width], "float32")
                    if was_read:
                        for t, w in T.Parallel(STEP, rows):
                            gradient[t, w] += h_pre_tile[t, w // width] * T.cast(du_tile[t, w % width], "float32")
                    for t, w in T.Parallel(STEP, rows):
                        dx_tile[w // width, t, w % width] = T.cast(gradient[t, w], dtype)
                    for i in streams:
                        T.copy(dx_tile[i, :, :], dx[t0 : t0 + STEP, i, c0 : c0 + width])
                if want_phi:
                    # parts[s, w, k] = sum_t x[t, w] dm[t, k]. Tensor cores add one step, plain additions the steps.
                    zero(part)
                    for w, t in T.Parallel(rows, STEP):
                        high[w, t] = T.cast(x_tile[w // width, t, w % width], "float32")
                    if not exact:
                        for w, t in T.Parallel(rows, STEP):
                            low[w, t] = high[w, t] - upper_bits(high[w, t])
                            high[w, t] -= low[w, t]
                        T.gemm(low, dm_high, part, policy=T.GemmWarpPolicy.FullRow)
                    T.gemm(high, dm_low, part, policy=T.GemmWarpPolicy.FullRow)
                    T.gemm(high, dm_high, part, policy=T.GemmWarpPolicy.FullRow)
                    for w, k in T.Parallel(rows, columns):
                        total[w, k] += part[w, k]
            if want_phi:
                for w, k in T.Parallel(rows, columns):
                    if c0 + w % width < C and k < K:
                        parts[s, w // width, c0 + w % width, k] = total[w, k]

    return differentiate


def upper_bits(value):
    """A fp32 number without the bits that tf32 does not keep."""
    return T.reinterpret(T.reinterpret(value, "uint32") & TF32_BITS, "float32")


@tile_kernel()
def add_parts(count):
    """total[e] = sum_s parts[s, e], in order."""
    ranges = T.dynamic("ranges", "int64")
    elements = 4 * ADDERS

    @T.prim_func
    def add_parts(parts: T.Tensor((ranges, count), "float32"), total: T.Tensor((count,), "float32")):
        with T.Kernel(T.ceildiv(count, elements), threads=ADDERS) as block:
            added = T.alloc_fragment((elements,), "float32")
            for e in T.Parallel(elements):
                added[e] = 0
            for s in T.serial(ranges):
                for e in T.Parallel(elements):
                    if block * elements + e < count:
                        added[e] += parts[s, block * elements + e]
            for e in T.Parallel(elements):
                if block * elements + e < count:
                    total[block * elements + e] = added[e]

    return add_parts


def gradients(needs, x, phi, r, dm, dr, dx0=None, h_pre=None, du=None):
    """dx and dphi as far as `needs` asks for them; where given, dx0 and h_pre du are added to dx."""
    tokens, n, C = x.shape
    dx, dphi = (torch.empty_like(tensor) if need else None for tensor, need in zip((x, phi), needs, strict=True))
    if tokens == 0:
        return dx, dphi if dphi is None else dphi.zero_()
    dtype = dtype_name(x, "x")
    blocks = math.ceil(C / backward_width(n, C, dtype))
    ranges, length = split_tokens(math.ceil(tokens / STEP), blocks, multiprocessors(x))
    rows = phi.view(n, C, -1)
    parts = rows.new_empty(ranges, *rows.shape) if dphi is not None and ranges > 1 else None
    # Tensors of the right shape stand for those that the kernel does not look at.
    differentiate(n, C, dtype, dx is not None, dphi is not None, du is not None, dx0 is not None)(
        x,
        rows,
        r,
        dm,
        dr,
        x if dx0 is None else dx0,
        dm.view(-1)[: tokens * n].view(tokens, n) if h_pre is None else h_pre,
        x.view(-1)[: tokens * C].view(tokens, C) if du is None else du,
        x if dx is None else dx,
        (phi if dphi is None else dphi).view(1, *rows.shape) if parts is None else parts,
        ranges,
        length,
    )
    if parts is not None:
        add_parts(phi.numel())(parts.view(ranges, -1), dphi.view(-1))
    return dx, dphi


def split_tokens(steps, blocks, slots):
    """Number of ranges of tokens and their length in steps: one wave of blocks, no range below eight steps."""
    length = max(min(8, steps), math.ceil(steps / max(1, slots // blocks)))
    return math.ceil(steps / length), length


def backward_width(n, C, dtype):
    """Columns of each stream in a block of backward: wide, because every block reads dm again.

    Fewer where registers are short: fp32 is held in halves, and rows without whole vectors are not copied by the TMA.
    """
    bits = 32 if dtype == "float32" else 16
    rows = 256 if n == 8 or dtype == "float32" else 512
    return (rows if C * bits % 128 == 0 else rows // 2) // n
