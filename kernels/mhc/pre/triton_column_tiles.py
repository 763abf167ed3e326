"""One program per tile of a few tokens by some columns; the streams are summed in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.measure.operators import Operator

REQUIRES = ("torch", "triton")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit(do_not_specialize=["T"])
def _pre(x, h_pre, u, T, C: tl.constexpr, n: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    block = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    # 64 bits, because T n C may pass 2^31.
    t = block.to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = t < T
    mask = live[:, None] & (c < C)[None, :]
    tile = (t * (n * C))[:, None] + c[None, :]

    # All loads stand before the first use, so that they wait for memory together.
    xs = ()
    for i in tl.static_range(n):
        xs += (tl.load(x + tile + i * C, mask=mask, other=0.0).to(tl.float32),)

    u_t = _read(xs, h_pre + t * n, live, n)
    tl.store(u + (t * C)[:, None] + c[None, :], u_t.to(u.dtype.element_ty), mask=mask)


@triton.jit
def _read(xs, h_pre_t, live, n: tl.constexpr):
    # u[t, c] = sum_i h_pre[t, i] x[t, i, c]
    # Fused where written, not where a compiler likes: whoever calls this gets the same bits.
    u_t = tl.load(h_pre_t, mask=live, other=0.0)[:, None] * xs[0]
    for i in tl.static_range(1, n):
        u_t = tl.fma(tl.load(h_pre_t + i, mask=live, other=0.0)[:, None], xs[i], u_t)
    return u_t


def _tile(C):
    """Tokens and columns of a tile: 2048 elements, 8 per thread, so that bf16 moves in 16-byte vectors.

    Wide tiles reload h_pre less often; the widest is taken that leaves at most an eighth of the lanes without a column.
    """
    wide = [c for c in (1024, 512) if -C % c * 8 <= C]
    block_c = wide[0] if wide else min(256, triton.next_power_of_2(C))
    return 2048 // block_c, block_c


@triton.jit
def _pre_backward(du, x, h_pre, dx, dh_pre, C: tl.constexpr, n: tl.constexpr, BLOCK_C: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    dh = ()
    for _ in tl.static_range(n):
        dh += (tl.zeros([BLOCK_C // 8], tl.float32),)
    for first in tl.static_range(0, C, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        mask = c < C
        du_t = tl.load(du + t * C + c, mask=mask, other=0.0).to(tl.float32)
        sums = ()
        for i in tl.static_range(n):
            row = (t * n + i) * C + c
            # dx[t, i, c] = h_pre[t, i] du[t, c]
            if dx is not None:
                tl.store(dx + row, (tl.load(h_pre + t * n + i) * du_t).to(dx.dtype.element_ty), mask=mask)
            # dh_pre[t, i] = sum_c du[t, c] x[t, i, c]; each thread first sums the 8 neighbours that it holds
            if dh_pre is not None:
                product = du_t * tl.load(x + row, mask=mask, other=0.0).to(tl.float32)
                sums += (dh[i] + tl.sum(tl.reshape(product, [BLOCK_C // 8, 8]), 1),)
        if dh_pre is not None:
            dh = sums
    if dh_pre is not None:
        for i in tl.static_range(n):
            tl.store(dh_pre + t * n + i, tl.sum(dh[i], 0))


def _outputs(x, *_):
    return x.new_empty(x.shape[0], x.shape[2])


def _forward(x: Tensor, h_pre: Tensor) -> Tensor:
    T, n, C = x.shape
    u = _outputs(x)
    block_t, block_c = _tile(C)
    blocks = triton.cdiv(T, block_t)
    # Tiles of one token follow each other, for the memory's rows; two axes, because one ends at 65535.
    grid = (triton.cdiv(C, block_c), min(blocks, 65535), triton.cdiv(blocks, 65535))
    _pre[grid](x, h_pre, u, T, C, n, block_t, block_c, num_warps=8, enable_fp_fusion=True)
    return u


def _backward(needs, du, x, h_pre):
    T, n, C = x.shape
    dx, dh_pre = (torch.empty_like(tensor) if need else None for tensor, need in zip((x, h_pre), needs, strict=True))
    block_c = min(1024, max(8, triton.next_power_of_2(C)))
    _pre_backward[(T,)](du, x, h_pre, dx, dh_pre, C, n, block_c, num_warps=4, enable_fp_fusion=True)
    return dx, dh_pre


_operator = Operator(_forward, _backward, _outputs)


def pre(x, h_pre):
    """Weighted sum of the residual streams, accumulated in fp32; x is read once, in backward too.

    x      [T, n, C] bf16, fp16 or fp32   residual streams, n in 1, 2, 4, 8
    h_pre  [T, n]    fp32                 weight of each stream
    gives  [T, C]    x's dtype

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    if x.dim() != 3 or x.shape[1] not in (1, 2, 4, 8) or x.shape[2] < 1 or x.dtype not in STREAMS:
        raise ValueError(f"x: expected [T, n, C] with n in 1, 2, 4, 8 in bf16, fp16 or fp32; got {_is(x)}")
    T, n, _ = x.shape
    if (h_pre.shape, h_pre.dtype, h_pre.device) != ((T, n), torch.float32, x.device):
        raise ValueError(f"h_pre: expected {[T, n]} torch.float32 on {x.device}; got {_is(h_pre)}")
    return _operator(x, h_pre)


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
