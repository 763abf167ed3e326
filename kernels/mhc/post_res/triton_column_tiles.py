"""One program per tile of a few tokens by some columns; each x is loaded once and serves all n sums from registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.measure.operators import Operator

REQUIRES = ("torch", "triton")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit(do_not_specialize=["T"])
def _post_res(
    x, f, h_post, h_res, y, T, C: tl.constexpr, n: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr
):
    block = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    # 64 bits, because T n C may pass 2^31.
    t = block.to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = t < T
    mask = live[:, None] & (c < C)[None, :]
    tile = (t * (n * C))[:, None] + c[None, :]

    # All loads stand before the first use, so that they wait for memory together.
    f_t = tl.load(f + (t * C)[:, None] + c[None, :], mask=mask, other=0.0).to(tl.float32)
    xs = ()
    for j in tl.static_range(n):
        xs += (tl.load(x + tile + j * C, mask=mask, other=0.0).to(tl.float32),)

    for i in tl.static_range(n):
        y_i = _mix(xs, f_t, h_post + t * n, h_res + t * (n * n), live, i, n)
        tl.store(y + tile + i * C, y_i.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _mix(xs, f_t, h_post_t, h_res_t, live, i: tl.constexpr, n: tl.constexpr):
    # y[t, i, c] = sum_j h_res[t, i, j] x[t, j, c] + h_post[t, i] f[t, c]
    # Fused where written, not where a compiler likes: whoever calls this gets the same bits.
    y_i = tl.load(h_post_t + i, mask=live, other=0.0)[:, None] * f_t
    for j in tl.static_range(n):
        y_i = tl.fma(tl.load(h_res_t + (i * n + j), mask=live, other=0.0)[:, None], xs[j], y_i)
    return y_i


def _tile(C):
    """Tokens and columns of a tile: 2048 elements, 8 per thread, so that bf16 moves in 16-byte vectors.

    Wide tiles reload the weights less often; the widest is taken that leaves at most an eighth of the lanes without a
    column.
    """
    wide = [c for c in (1024, 512) if -C % c * 8 <= C]
    block_c = wide[0] if wide else min(256, triton.next_power_of_2(C))
    return 2048 // block_c, block_c


@triton.jit
def _post_res_backward(
    dy,
    x,
    f,
    h_post,
    h_res,
    dx,
    df,
    dh_post,
    dh_res,
    C: tl.constexpr,
    n: tl.constexpr,
    LANES: tl.constexpr,
    V: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    post, res = (), ()
    for _ in tl.static_range(n):
        post += (tl.zeros([LANES], tl.float32),)
    for _ in tl.static_range(n * n):
        res += (tl.zeros([LANES], tl.float32),)
    for first in range(0, C, LANES * V):
        c = first + tl.arange(0, LANES * V)
        mask = c < C
        row = t * (n * C) + c

        # All loads stand before the first use, so that they wait for memory together.
        dys, xs = (), ()
        for i in tl.static_range(n):
            dys += (tl.load(dy + row + i * C, mask=mask, other=0.0).to(tl.float32),)
        if dh_res is not None:
            for j in tl.static_range(n):
                xs += (tl.load(x + row + j * C, mask=mask, other=0.0),)
        if dh_post is not None:
            f_t = tl.load(f + t * C + c, mask=mask, other=0.0).to(tl.float32)

        # dx[t, j, c] = sum_i h_res[t, i, j] dy[t, i, c]
        if dx is not None:
            for j in tl.static_range(n):
                total = tl.load(h_res + t * (n * n) + j) * dys[0]
                for i in tl.static_range(1, n):
                    total = tl.fma(tl.load(h_res + t * (n * n) + (i * n + j)), dys[i], total)
                tl.store(dx + row + j * C, total.to(dx.dtype.element_ty), mask=mask)
        # df[t, c] = sum_i h_post[t, i] dy[t, i, c]
        if df is not None:
            total = tl.load(h_post + t * n) * dys[0]
            for i in tl.static_range(1, n):
                total = tl.fma(tl.load(h_post + t * n + i), dys[i], total)
            tl.store(df + t * C + c, total.to(df.dtype.element_ty), mask=mask)
        # dh_post[t, i] = sum_c dy[t, i, c] f[t, c]
        if dh_post is not None:
            sums = ()
            for i in tl.static_range(n):
                sums += (post[i] + _sum_of_neighbours(dys[i] * f_t, LANES, V),)
            post = sums
        # dh_res[t, i, j] = sum_c dy[t, i, c] x[t, j, c]
        if dh_res is not None:
            sums = ()
            for j in tl.static_range(n):
                x_j = xs[j].to(tl.float32)
                for i in tl.static_range(n):
                    sums += (res[j * n + i] + _sum_of_neighbours(dys[i] * x_j, LANES, V),)
            res = sums
    if dh_post is not None:
        tl.store(dh_post + t * n + tl.arange(0, n), tl.sum(_stack(post, n), 0))
    if dh_res is not None:
        ji = tl.arange(0, n * n)
        tl.store(dh_res + t * (n * n) + (ji % n) * n + ji // n, tl.sum(_stack(res, n * n), 0))


@triton.jit
def _sum_of_neighbours(product, LANES: tl.constexpr, V: tl.constexpr):
    # Each thread sums the V neighbours that it holds; threads meet once, behind the last tile.
    return tl.sum(tl.reshape(product, [LANES, V]), 1)


@triton.jit
def _stack(blocks, count: tl.constexpr):
    # One block [LANES, count] of `count` blocks [LANES], a power of two, so that threads meet once for all sums.
    # `join` lays two blocks side by side along a new last axis: block k meets block k + half.
    LANES: tl.constexpr = blocks[0].shape[0]
    for step in tl.static_range(6):
        if (2 << step) <= count:
            pairs = ()
            for k in tl.static_range(count >> (step + 1)):
                pairs += (tl.join(blocks[k], blocks[k + (count >> (step + 1))]),)
            blocks = pairs
    return tl.reshape(blocks[0], [LANES, count])


def _outputs(x, *_):
    return torch.empty_like(x)


def _forward(x: Tensor, f: Tensor, h_post: Tensor, h_res: Tensor) -> Tensor:
    T, n, C = x.shape
    y = _outputs(x)
    block_t, block_c = _tile(C)
    blocks = triton.cdiv(T, block_t)
    # Tiles of one token follow each other, for the memory's rows; two axes, because one ends at 65535.
    grid = (triton.cdiv(C, block_c), min(blocks, 65535), triton.cdiv(blocks, 65535))
    _post_res[grid](x, f, h_post, h_res, y, T, C, n, block_t, block_c, num_warps=8, enable_fp_fusion=True)
    return y


def _backward(needs, dy, x, f, h_post, h_res):
    T, n, C = x.shape
    inputs = (x, f, h_post, h_res)
    found = [torch.empty_like(tensor) if need else None for tensor, need in zip(inputs, needs, strict=True)]
    # A thread moves 16 bytes at a time; at n = 8 its sums leave registers for 4 columns only.
    vector = min(16 // x.element_size(), 32 // n)
    lanes = min(128, triton.next_power_of_2(triton.cdiv(C, vector)))
    _post_res_backward[(T,)](dy, *inputs, *found, C, n, lanes, vector, num_warps=4, enable_fp_fusion=True)
    return found


_operator = Operator(_forward, _backward, _outputs)


def post_res(x, f, h_post, h_res):
    """Mix the residual streams and add the layer's output, accumulated in fp32; x and f are read once, in backward too.

    x       [T, n, C] bf16, fp16 or fp32   residual streams, n in 1, 2, 4, 8
    f       [T, C]    x's dtype            output of the layer function
    h_post  [T, n]    fp32                 weight of f in each stream
    h_res   [T, n, n] fp32                 mixing weights, [out, in]
    gives   [T, n, C] x's dtype

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    if x.dim() != 3 or x.shape[1] not in (1, 2, 4, 8) or x.shape[2] < 1 or x.dtype not in STREAMS:
        raise ValueError(f"x: expected [T, n, C] with n in 1, 2, 4, 8 in bf16, fp16 or fp32; got {_is(x)}")
    T, n, C = x.shape
    _expect("f", f, (T, C), x.dtype, x.device)
    _expect("h_post", h_post, (T, n), torch.float32, x.device)
    _expect("h_res", h_res, (T, n, n), torch.float32, x.device)
    return _operator(x, f, h_post, h_res)


def _expect(name, tensor, shape, dtype, device):
    if (tensor.shape, tensor.dtype, tensor.device) != (shape, dtype, device):
        raise ValueError(f"{name}: expected {list(shape)} {dtype} on {device}; got {_is(tensor)}")


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
