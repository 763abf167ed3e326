"""One pass over x on tensor cores; the nC inputs are split over programs, whose partial sums are added in order."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.measure.operators import Operator

REQUIRES = ("torch", "triton")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit(do_not_specialize=["T"])
def _project(
    x, phi, m, r, T, eps, WIDTH: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(1)
    # 64 bits, because T n C may pass 2^31.
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    k = tl.arange(0, BLOCK_K)
    live = t < T
    kept = live[:, None] & (k < K)[None, :]
    rows = x + (t * WIDTH)[:, None]
    at = (tl.arange(0, BLOCK_W) * K)[:, None] + k[None, :]
    STEPS: tl.constexpr = (WIDTH + BLOCK_W * SPLITS - 1) // (BLOCK_W * SPLITS)

    # m[t, k] = sum_w x[t, w] phi[w, k]; squares[t] = sum_w x[t, w]^2
    total = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    squares = tl.zeros([BLOCK_T, BLOCK_W // 8], tl.float32)
    for step in range(STEPS):
        first = (split * STEPS + step) * BLOCK_W
        w = first + tl.arange(0, BLOCK_W)
        x_t = tl.load(rows + w[None, :], mask=live[:, None] & (w < WIDTH)[None, :], other=0.0)
        phi_t = tl.load(phi + first.to(tl.int64) * K + at, mask=(w < WIDTH)[:, None] & (k < K)[None, :], other=0.0)
        # Each thread sums the 8 neighbours that it holds: 8 times fewer registers than squares in x's own shape.
        x_32 = x_t.to(tl.float32)
        squares += tl.sum(tl.reshape(x_32 * x_32, [BLOCK_T, BLOCK_W // 8, 8]), 2)
        # Products are exact: phi has the 11 significant bits of tf32. In 16 bits x goes to the tensor core as it came.
        scale = 1.0
        if x.dtype.element_ty == tl.bfloat16:
            # phi is the sum of two bf16.
            high = phi_t.to(tl.bfloat16)
            low = (phi_t - high.to(tl.float32)).to(tl.bfloat16)
            part = tl.dot(x_t, high, tl.dot(x_t, low))
        elif x.dtype.element_ty == tl.float16:
            # phi is one fp16, once a power of two has brought the block's largest to 2^14.
            exponent = tl.maximum(tl.max(tl.abs(phi_t)).to(tl.int32, bitcast=True) >> 23, 16)
            scale = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
            part = tl.dot(x_t, (phi_t * ((268 - exponent) << 23).to(tl.float32, bitcast=True)).to(tl.float16))
        else:
            # x is the sum of two tf32, to 22 of its 24 bits.
            high = (x_32.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
            part = tl.dot(x_32 - high, phi_t, input_precision="tf32")
            part = tl.dot(high, phi_t, part, input_precision="tf32")
        # Tensor cores cut off what they add, which would drift over nC terms: they only add one block. The fma is an
        # addition that the compiler does not fold back into the dot.
        total = tl.fma(part, scale, total)
    square = tl.sum(squares, 1)

    if SPLITS == 1:
        # r[t] = sqrt(squares[t] / (n C) + eps)
        tl.store(m + (t * K)[:, None] + k[None, :], total, mask=kept)
        tl.store(r + t, tl.sqrt_rn(square / WIDTH + eps), mask=live)
    else:
        part = split * T.to(tl.int64) + t
        tl.store(m + (part * K)[:, None] + k[None, :], total, mask=kept)
        tl.store(r + part, square, mask=live)


@triton.jit(do_not_specialize=["T"])
def _add_parts(
    totals, squares, m, r, T, eps, WIDTH: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    k = tl.arange(0, BLOCK_K)
    s = tl.arange(0, BLOCK_S)
    part = s[:, None] * T.to(tl.int64) + t[None, :]
    live = t < T
    kept = live[:, None] & (k < K)[None, :]
    parts = (s < SPLITS)[:, None] & live[None, :]

    # m[t, k] = sum_s totals[s, t, k]
    total = tl.load(
        totals + (part * K)[:, :, None] + k[None, None, :], mask=parts[:, :, None] & kept[None, :, :], other=0.0
    )
    tl.store(m + (t * K)[:, None] + k[None, :], tl.sum(total, 0), mask=kept)
    # r[t] = sqrt(sum_s squares[s, t] / (n C) + eps)
    square = tl.sum(tl.load(squares + part, mask=parts, other=0.0), 0)
    tl.store(r + t, tl.sqrt_rn(square / WIDTH + eps), mask=live)


@lru_cache(maxsize=1024)
def _config(T, n, C, item_bytes):
    """Tokens and inputs of a block, and the number of splits.

    Every token block reads all of phi, every split writes partial sums: blocks of 256 tokens keep phi's share small
    (at n = 4 in bf16 a fifth of x, from L2), smaller T takes smaller blocks, and n = 8 too, for want of registers. A
    block of x is 32 KiB at most, to fit shared memory three times. Splits are as many as finish first on 132
    multiprocessors of one program each, where starting, ending and adding up a program costs about 4 steps.
    """
    block_t = 64 if T <= 64 else 128 if T < 2048 or n == 8 else 256
    block_w = 64 if item_bytes == 2 and block_t * 64 <= 16384 else 32
    blocks, steps = triton.cdiv(T, block_t), triton.cdiv(n * C, block_w)
    splits = min(range(1, 133), key=lambda s: triton.cdiv(blocks * s, 132) * (triton.cdiv(steps, s) + 4))
    return block_t, block_w, splits


@triton.jit(do_not_specialize=["T"])
def _project_backward(
    x, phi, r, dm, dr, du, h_pre, dx0, dx, dphi, T, C: tl.constexpr, n: tl.constexpr, STREAMS: tl.constexpr,
    STEPS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = n * n + 2 * n
    BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    stream = tl.program_id(1) * STREAMS
    part = tl.program_id(2)
    k = tl.arange(0, BLOCK_K)
    weights = ((stream * C + c) * K)[:, None] + k[None, :]
    within = (c < C)[:, None]
    phis, sums = (), ()
    for i in tl.static_range(STREAMS):
        for j in tl.static_range(0, K, BLOCK_K):
            if dx is not None:
                phis += (tl.load(phi + weights + (i * C * K + j), mask=within & (k < K - j)[None, :], other=0.0),)
            sums += (tl.zeros([BLOCK_C, BLOCK_K], tl.float32),)

    for step in tl.range(0, STEPS, num_stages=3):
        # 64 bits, because T n C may pass 2^31.
        t = (part * STEPS + step).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
        live = t < T
        mask = live[:, None] & (c < C)[None, :]
        tile = (t * (n * C))[:, None] + (stream * C + c)[None, :]
        # dm = high + low, each a tf32, to 22 of its 24 bits.
        highs, lows = (), ()
        for j in tl.static_range(0, K, BLOCK_K):
            both = tl.load(dm + (t * K + j)[:, None] + k[None, :], mask=live[:, None] & (k < K - j)[None, :], other=0.0)
            high = (both.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
            highs += (high,)
            lows += (both - high,)
        if dx is not None:
            scale = tl.load(dr + t, mask=live, other=0.0) / (tl.load(r + t, mask=live, other=1.0) * (n * C))
            if du is not None:
                du_t = tl.load(du + (t * C)[:, None] + c[None, :], mask=mask, other=0.0).to(tl.float32)
        added = ()
        for i in tl.static_range(STREAMS):
            x_t = tl.load(x + tile + i * C, mask=mask, other=0.0)
            # dphi[i c, k] = sum_t x[t, i, c] dm[t, k]. Tensor cores cut off what they add, which would drift over T
            # terms: they only add one block. The fma is an addition that the compiler does not fold back into the dot.
            if dphi is not None:
                for j in tl.static_range(BLOCKS):
                    added += (tl.fma(_product(x_t, highs[j], lows[j]), 1.0, sums[i * BLOCKS + j]),)
            # dx[t, i, c] = sum_k dm[t, k] phi[i c, k] + dr[t] x[t, i, c] / (n C r[t])
            #               + h_pre[t, i] du[t, c] + dx0[t, i, c]
            if dx is not None:
                dx_t = tl.zeros([BLOCK_C, BLOCK_T], tl.float32)
                for j in tl.static_range(BLOCKS):
                    dx_t = tl.dot(phis[i * BLOCKS + j], tl.trans(lows[j]), dx_t, input_precision="tf32")
                for j in tl.static_range(BLOCKS):
                    dx_t = tl.dot(phis[i * BLOCKS + j], tl.trans(highs[j]), dx_t, input_precision="tf32")
                dx_t = tl.trans(dx_t) + scale[:, None] * x_t.to(tl.float32)
                if du is not None:
                    dx_t += tl.load(h_pre + t * n + (stream + i), mask=live, other=0.0)[:, None] * du_t
                if dx0 is not None:
                    dx_t += tl.load(dx0 + tile + i * C, mask=mask, other=0.0).to(tl.float32)
                tl.store(dx + tile + i * C, dx_t.to(dx.dtype.element_ty), mask=mask)
        if dphi is not None:
            sums = added

    if dphi is not None:
        for i in tl.static_range(STREAMS):
            for j in tl.static_range(BLOCKS):
                tl.store(
                    dphi + part.to(tl.int64) * (n * C * K) + weights + (i * C * K + j * BLOCK_K),
                    sums[i * BLOCKS + j],
                    mask=within & (k < K - j * BLOCK_K)[None, :],
                )


@triton.jit
def _product(x_t, dm_high, dm_low):
    """x_t^T (dm_high + dm_low), where products of parts too small for fp32's 24 bits are left out."""
    if x_t.dtype == tl.bfloat16:
        # dm is the sum of three bf16.
        dm = dm_high + dm_low
        one = dm.to(tl.bfloat16)
        dm -= one.to(tl.float32)
        two = dm.to(tl.bfloat16)
        three = (dm - two.to(tl.float32)).to(tl.bfloat16)
        x_w = tl.trans(x_t)
        product = tl.dot(x_w, one, tl.dot(x_w, two, tl.dot(x_w, three)))
    else:
        # fp16 is one tf32, fp32 the sum of two, to 22 of its 24 bits.
        x_w = tl.trans(x_t.to(tl.float32))
        high = (x_w.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        product = tl.dot(high, dm_low, input_precision="tf32")
        if x_t.dtype == tl.float32:
            product = tl.dot(x_w - high, dm_high, product, input_precision="tf32")
        product = tl.dot(high, dm_high, product, input_precision="tf32")
    return product


@triton.jit
def _add_ranges(parts, total, COUNT: tl.constexpr, RANGES: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < COUNT
    # total = sum_s parts[s], in order
    value = tl.load(parts + at, mask=mask, other=0.0)
    for s in range(1, RANGES):
        value += tl.load(parts + tl.cast(s, tl.int64) * COUNT + at, mask=mask, other=0.0)
    tl.store(total + at, value, mask=mask)


@lru_cache(maxsize=1024)
def _config_backward(T, n, C, dtype, adds):
    """Streams, tokens and columns of a block, steps of a token range, and the number of ranges.

    A program owns columns, and keeps their phi and dphi while it walks a range of tokens. Every block of columns reads
    all of dm, every range all of phi, and writes a partial dphi: columns are as many as registers hold, and ranges fill
    132 multiprocessors once, with 512 tokens each at least.
    """
    streams = n if n <= 4 else 1
    width = 512 if n == 4 and dtype != torch.float32 else 256 if n <= 4 else 128
    if adds and C % 8:
        # Addresses of single elements take the registers of half the columns.
        streams, width = min(streams, 2), width // 2
    block_c = min(width // streams, max(16, triton.next_power_of_2(C)))
    # Wider blocks where registers hold them: not beside other terms, nor addresses of single elements.
    block_t = 32 if n <= 4 and dtype == torch.bfloat16 and C % 8 == 0 and not adds else 16
    ranges = max(1, min(132 // (triton.cdiv(C, block_c) * (n // streams)), T // 512))
    steps = max(1, triton.cdiv(T, block_t * ranges))
    # Rounded up to four significant bits: steps are compiled in, and not every T should compile the kernel anew.
    steps += -steps % (1 << max(0, steps.bit_length() - 4))
    return streams, block_t, block_c, steps, max(1, triton.cdiv(T, block_t * steps))


def _outputs(x, phi, eps):
    del eps
    T, K = x.shape[0], phi.shape[1]
    return phi.new_empty(T, K), phi.new_empty(T)


def _forward(x: Tensor, phi: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    m, r = _outputs(x, phi, eps)
    T, n, C = x.shape
    totals, squares, splits = multiply(x, phi, (m, r), eps)
    if splits > 1:
        block_s, block_k = triton.next_power_of_2(splits), max(16, triton.next_power_of_2(phi.shape[1]))
        block_t = max(1, 4096 // (block_s * block_k))
        _add_parts[(triton.cdiv(T, block_t),)](
            totals, squares, m, r, T, eps, n * C, phi.shape[1], splits, block_s, block_t, block_k,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return m, r


def multiply(x, phi, alone, eps):
    """Launch the product: partial sums [S, T, K] and partial squares [S, T], and how many splits S there are.

    A single split has nothing to add: it writes m and r into the pair `alone` instead, or into partial sums for None.
    """
    T, n, C = x.shape
    K = phi.shape[1]
    block_t, block_w, splits = _config(T, n, C, x.element_size())
    parts = alone if splits == 1 else (phi.new_empty(splits, T, K), phi.new_empty(splits, T))
    _project[(triton.cdiv(T, block_t), splits)](
        x, phi, *parts, T, eps, n * C, K, splits, block_t, block_w, max(16, triton.next_power_of_2(K)),
        num_warps=8, num_stages=4, enable_fp_fusion=True,
    )  # fmt: skip
    return *parts, splits


def backward(needs, dm, dr, x, phi, r, du=None, h_pre=None, dx0=None):
    """Gradients of x and phi, each if needed, in one pass over x.

    dm   [T, K]    fp32
    dr   [T]       fp32
    du   [T, C]    x's dtype, with h_pre [T, n] fp32: adds h_pre[t, i] du[t, c] to dx
    dx0  [T, n, C] x's dtype, is added to dx
    """
    T, n, C = x.shape
    adds = du is not None or dx0 is not None
    streams, block_t, block_c, steps, ranges = _config_backward(T, n, C, x.dtype, adds)
    dx, dphi = (torch.empty_like(tensor) if need else None for tensor, need in zip((x, phi), needs, strict=True))
    parts = dphi if dphi is None or ranges == 1 else phi.new_empty(ranges, *phi.shape)
    block_k = min(32, max(16, triton.next_power_of_2(phi.shape[1])))
    _project_backward[(triton.cdiv(C, block_c), n // streams, ranges)](
        x, phi, r, dm, dr, du, h_pre, dx0, dx, parts, T, C, n, streams, steps, block_t, block_c, block_k,
        num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    if parts is not dphi:
        grid = (triton.cdiv(phi.numel(), 512),)
        _add_ranges[grid](parts, dphi, phi.numel(), ranges, 512, num_warps=4, enable_fp_fusion=True)
    return dx, dphi


def _backward(needs, dm, dr, x, phi, r, eps):
    del eps
    return backward(needs, dm, dr, x, phi, r)


_operator = Operator(_forward, _backward, _outputs, keeps=(1,))


def project(x, phi, *, eps=1e-20):
    """All coefficients of a token before scaling, and its norm; x is read once, in backward too.

    x      [T, n, C]    bf16, fp16 or fp32   residual streams, n in 1, 2, 4, 8
    phi    [n*C, K]     fp32                 values that tf32 can represent; K = n^2 + 2n in the order pre, post, res
    gives  m [T, K] fp32 = vec(x) phi, r [T] fp32 = sqrt(mean(vec(x)^2) + eps)

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    if x.dim() != 3 or x.shape[1] not in (1, 2, 4, 8) or x.shape[2] < 1 or x.dtype not in STREAMS:
        raise ValueError(f"x: expected [T, n, C] with n in 1, 2, 4, 8 in bf16, fp16 or fp32; got {_is(x)}")
    _, n, C = x.shape
    if (phi.shape, phi.dtype, phi.device) != ((n * C, n * n + 2 * n), torch.float32, x.device):
        raise ValueError(f"phi: expected {[n * C, n * n + 2 * n]} torch.float32 on {x.device}; got {_is(phi)}")
    return _operator(x, phi, float(eps))


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
