"""tf32 tensor cores over slices of n C, so that few tokens fill the GPU; a second kernel adds the slices in order."""

import math

import tilelang.language as T
import torch
from tilelang.layout import make_swizzled_layout
from torch import Tensor

from perflab.measure.operators import Operator
from perflab.measure.tile_kernel import alloc_shared, dtype_name, for_c_target, multiprocessors, tile_kernel

REQUIRES = ("torch", "tilelang")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)

TOKENS = 128
DEPTH = 32
THREADS = 128
STAGES = 4
#: Tokens of a step of backward, whose products tensor cores add; threads and stages of its blocks.
STEP = 16
BACKWARD_THREADS = 256
BACKWARD_STAGES = 3
#: The bits of a fp32 number that tf32 keeps.
TF32_BITS = 0xFFFFE000


@tile_kernel()
def multiply_slices(D, K, dtype):
    """Each slice's share of x phi and of sum x^2, from one read of x."""
    tokens = T.dynamic("tokens", "int64")
    slices = T.dynamic("slices", "int64")
    columns = math.ceil(K / 8) * 8
    steps = math.ceil(D / DEPTH)
    exact = dtype != "float32"
    rows = block_tokens(K, dtype)

    @T.prim_func
    def multiply_slices(
        x: T.Tensor((tokens, D), dtype),
        phi: T.Tensor((D, K), "float32"),
        products: T.Tensor((slices, tokens, K), "float32"),
        squares: T.Tensor((slices, tokens), "float32"),
        length: T.int32,
    ):
        with T.Kernel(T.ceildiv(tokens, rows), slices, threads=THREADS) as (block, s):
            if not for_c_target():
                # Two blocks hide each other's waits better than one with registers to spare.
                T.annotate_min_blocks_per_sm(blocks_per_sm(K, dtype))
                T.no_set_max_nreg()
            x_tile = alloc_shared((rows, DEPTH), dtype)
            phi_tile = alloc_shared((DEPTH, columns), "float32")
            if not for_c_target():
                # Threads read a column of eight rows at a time; unswizzled, those rows share their banks.
                T.annotate_layout({x_tile: make_swizzled_layout(x_tile)})
            high = T.alloc_fragment((rows, DEPTH), "float32")
            low = T.alloc_fragment((rows, DEPTH), "float32")
            part = T.alloc_fragment((rows, columns), "float32")
            product = T.alloc_fragment((rows, columns), "float32")
            square = T.alloc_fragment((rows, DEPTH), "float32")
            norm = T.alloc_fragment((rows,), "float32")
            first = s * length
            for t, k in T.Parallel(rows, columns):
                product[t, k] = 0
            for t, d in T.Parallel(rows, DEPTH):
                square[t, d] = 0
            for step in T.Pipelined(T.min(length, steps - first), num_stages=STAGES):
                T.copy(x[block * rows, (first + step) * DEPTH], x_tile)
                T.copy(phi[(first + step) * DEPTH, 0], phi_tile)
                for t, d in T.Parallel(rows, DEPTH):
                    high[t, d] = T.cast(x_tile[t, d], "float32")
                # squares[s, t] = sum_d x[t, d]^2
                for t, d in T.Parallel(rows, DEPTH):
                    square[t, d] += high[t, d] * high[t, d]
                # products[s, t, k] = sum_d x[t, d] phi[d, k]. Tensor cores cut off what they add, which would drift
                # over a slice: they add one step, and plain additions the steps.
                for t, k in T.Parallel(rows, columns):
                    part[t, k] = 0
                if not exact:
                    # tf32 keeps 11 of fp32's 24 significant bits: x = high + low carries 22 of them.
                    for t, d in T.Parallel(rows, DEPTH):
                        low[t, d] = high[t, d]
                        high[t, d] = T.reinterpret(T.reinterpret(low[t, d], "uint32") & TF32_BITS, "float32")
                        low[t, d] -= high[t, d]
                    T.gemm(low, phi_tile, part, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(high, phi_tile, part, policy=T.GemmWarpPolicy.FullRow)
                for t, k in T.Parallel(rows, columns):
                    product[t, k] += part[t, k]
            if for_c_target():
                # The C target sums no fragments; its loop is what reduce_sum does across threads.
                for t in T.Parallel(rows):
                    norm[t] = 0
                    for d in T.serial(DEPTH):
                        norm[t] += square[t, d]
            else:
                T.reduce_sum(square, norm, dim=1)
            for t in T.Parallel(rows):
                squares[s, block * rows + t] = norm[t]
            for t, k in T.Parallel(rows, columns):
                if k < K:
                    products[s, block * rows + t, k] = product[t, k]

    return multiply_slices


@tile_kernel()
def add_slices(K):
    """Sums over the slices, in order, and the root of the mean square."""
    tokens = T.dynamic("tokens", "int64")
    slices = T.dynamic("slices", "int64")

    @T.prim_func
    def add_slices(
        products: T.Tensor((slices, tokens, K), "float32"),
        squares: T.Tensor((slices, tokens), "float32"),
        m: T.Tensor((tokens, K), "float32"),
        r: T.Tensor((tokens,), "float32"),
        D: T.int32,
        eps: T.float32,
    ):
        with T.Kernel(T.ceildiv(tokens, THREADS // 4), threads=THREADS) as block:
            total = T.alloc_fragment((THREADS // 4, K), "float32")
            square = T.alloc_fragment((THREADS // 4,), "float32")
            first = block * (THREADS // 4)
            # m[t, k] = sum_s products[s, t, k]
            for t, k in T.Parallel(THREADS // 4, K):
                total[t, k] = 0
            for s in T.serial(slices):
                for t, k in T.Parallel(THREADS // 4, K):
                    if first + t < tokens:
                        total[t, k] += products[s, first + t, k]
            for t, k in T.Parallel(THREADS // 4, K):
                m[first + t, k] = total[t, k]
            # r[t] = sqrt(sum_s squares[s, t] / (n C) + eps)
            for t in T.Parallel(THREADS // 4):
                square[t] = 0
            for s in T.serial(slices):
                for t in T.Parallel(THREADS // 4):
                    if first + t < tokens:
                        square[t] += squares[s, first + t]
            for t in T.Parallel(THREADS // 4):
                r[first + t] = T.sqrt(square[t] / T.cast(D, "float32") + eps)

    return add_slices


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
        with T.Kernel(T.ceildiv(C, width), ranges, threads=BACKWARD_THREADS) as (block, s):
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
                    if c0 + w % width < C and k < K:
                        phi_tile[w, k] = phi[w // width, c0 + w % width, k]
                    else:
                        phi_tile[w, k] = 0
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
                for w, k in T.Parallel(rows, columns):
                    total[w, k] = 0
            if not for_c_target():
                # Threads read a column of eight rows at a time; unswizzled, those rows share their banks.
                T.annotate_layout({x_tile: make_swizzled_layout(x_tile)})
                if want_x and used_later:
                    T.annotate_layout({dx0_tile: make_swizzled_layout(dx0_tile)})
                if want_x and was_read:
                    T.annotate_layout({du_tile: make_swizzled_layout(du_tile)})
            for step in T.Pipelined(T.min(length, T.ceildiv(tokens, STEP) - first), num_stages=BACKWARD_STAGES):
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
                    dm_high[t, k] = T.reinterpret(T.reinterpret(dm_tile[t, k], "uint32") & TF32_BITS, "float32")
                    dm_low[t, k] = dm_tile[t, k] - dm_high[t, k]
                if want_x:
                    # dx[t, w] = sum_k dm[t, k] phi[w, k] + dr[t] x[t, w] / (n C r[t]), w for all of i, c
                    for t in T.Parallel(STEP):
                        if t0 + t < tokens:
                            scale[t] = dr_tile[t] / (n * C * r_tile[t])
                        else:
                            scale[t] = 0
                    for t, w in T.Parallel(STEP, rows):
                        gradient[t, w] = 0
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
                    for w, k in T.Parallel(rows, columns):
                        part[w, k] = 0
                    for w, t in T.Parallel(rows, STEP):
                        high[w, t] = T.cast(x_tile[w // width, t, w % width], "float32")
                    if not exact:
                        for w, t in T.Parallel(rows, STEP):
                            low[w, t] = high[w, t]
                            high[w, t] = T.reinterpret(T.reinterpret(low[w, t], "uint32") & TF32_BITS, "float32")
                            low[w, t] -= high[w, t]
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


@tile_kernel()
def add_parts(count):
    """total[e] = sum_s parts[s, e], in order."""
    ranges = T.dynamic("ranges", "int64")
    elements = 4 * THREADS

    @T.prim_func
    def add_parts(parts: T.Tensor((ranges, count), "float32"), total: T.Tensor((count,), "float32")):
        with T.Kernel(T.ceildiv(count, elements), threads=THREADS) as block:
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


def _outputs(x, phi, eps):
    del eps
    return x.new_empty(x.shape[0], phi.shape[1], dtype=torch.float32), x.new_empty(x.shape[0], dtype=torch.float32)


def _forward(x: Tensor, phi: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    m, r = _outputs(x, phi, eps)
    products, squares = sliced(x, phi)
    add_slices(phi.shape[1])(products, squares, m, r, phi.shape[0], eps)
    return m, r


def sliced(x, phi):
    """Each slice's share of x phi, [slices, T, K], and of sum x^2, [slices, T]."""
    tokens, n, C = x.shape
    D, K = n * C, n * n + 2 * n
    dtype = dtype_name(x, "x")
    slices, length = split(tokens, math.ceil(D / DEPTH), blocks_per_sm(K, dtype) * multiprocessors(x))
    products, squares = (x.new_empty(shape, dtype=torch.float32) for shape in ((slices, tokens, K), (slices, tokens)))
    multiply_slices(D, K, dtype)(x.view(tokens, D), phi, products, squares, length)
    return products, squares


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


def _backward(needs, dm, dr, x, phi, r, eps):
    del eps
    return gradients(needs, x, phi, r, dm, dr)


_operator = Operator(_forward, _backward, _outputs, keeps=(1,))


def project(x, phi, *, eps=1e-20):
    """Project a token's streams onto the coefficients, and take their root mean square, in one pass over x.

    Backward too reads x once, for both gradients.

    x      [T, n, C]       stream dtype
    phi    [n*C, n*n+2*n]  fp32 that tf32 holds exactly
    gives  m [T, n*n+2*n], r [T], fp32: vec(x) phi and sqrt(sum x^2 / (n C) + eps)

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    check(x, phi)
    return _operator(x, phi, eps)


def check(x, phi):
    """What project and read want of their tensors. Fails: ValueError."""
    if x.dim() != 3 or x.shape[1] not in (1, 2, 4, 8) or x.shape[2] < 1 or x.dtype not in STREAMS:
        raise ValueError(f"x: expected [T, n, C] with n in 1, 2, 4, 8 in bf16, fp16 or fp32; got {_is(x)}")
    _, n, C = x.shape
    expected = [n * C, n * n + 2 * n]
    if (list(phi.shape), phi.dtype, phi.device) != (expected, torch.float32, x.device):
        raise ValueError(f"phi: expected {expected} torch.float32 on {x.device}; got {_is(phi)}")


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"


def split(tokens, steps, slots):
    """Number of slices and their length in steps: full waves of blocks, no slice below eight steps."""
    blocks = max(1, math.ceil(tokens / TOKENS))
    slices = min(range(1, max(4, slots // blocks) + 1), key=lambda count: math.ceil(blocks * count / slots) / count)
    length = max(min(8, steps), math.ceil(steps / slices))
    return math.ceil(steps / length), length


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


def block_tokens(K, dtype):
    """Tokens of a block: fewer where both halves of x meet many columns, for want of registers."""
    return TOKENS // 2 if K > 32 and dtype == "float32" else TOKENS


def blocks_per_sm(K, dtype):
    """Blocks whose registers fit a multiprocessor together: two, unless many columns or both halves of x are held."""
    return 2 if K <= 32 and dtype != "float32" else 1
