"""One pass over x on tensor cores; the nC inputs are split over programs, whose partial sums are added in order."""

from functools import lru_cache

import torch
import triton
import triton.language as tl

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


def project(x, phi, *, eps=1e-20):
    """All coefficients of a token before scaling, and its norm; x is read once.

    x      [T, n, C]    bf16, fp16 or fp32   residual streams, n in 1, 2, 4, 8
    phi    [n*C, K]     fp32                 values that tf32 can represent; K = n^2 + 2n in the order pre, post, res
    gives  m [T, K] fp32 = vec(x) phi, r [T] fp32 = sqrt(mean(vec(x)^2) + eps)

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    if x.dim() != 3 or x.shape[1] not in (1, 2, 4, 8) or x.shape[2] < 1 or x.dtype not in STREAMS:
        raise ValueError(f"x: expected [T, n, C] with n in 1, 2, 4, 8 in bf16, fp16 or fp32; got {_is(x)}")
    T, n, C = x.shape
    width, K = n * C, n * n + 2 * n
    if (phi.shape, phi.dtype, phi.device) != ((width, K), torch.float32, x.device):
        raise ValueError(f"phi: expected {[width, K]} torch.float32 on {x.device}; got {_is(phi)}")
    x, phi = x.contiguous(), phi.contiguous()
    fp32 = {"dtype": torch.float32, "device": x.device}
    m, r = torch.empty((T, K), **fp32), torch.empty(T, **fp32)
    block_t, block_w, splits = _config(T, n, C, x.element_size())
    block_k = max(16, triton.next_power_of_2(K))
    shape = (T, float(eps), width, K, splits)
    parts = (m, r) if splits == 1 else (torch.empty((splits, T, K), **fp32), torch.empty((splits, T), **fp32))
    with torch.cuda.device_of(x):
        _project[(triton.cdiv(T, block_t), splits)](
            x, phi, *parts, *shape, block_t, block_w, block_k, num_warps=8, num_stages=4, enable_fp_fusion=True
        )
        if splits > 1:
            block_s = triton.next_power_of_2(splits)
            block_t = max(1, 4096 // (block_s * block_k))
            _add_parts[(triton.cdiv(T, block_t),)](
                *parts, m, r, *shape, block_s, block_t, block_k, num_warps=4, enable_fp_fusion=True
            )
    return m, r


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
