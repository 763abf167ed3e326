"""One program per tile of a few tokens by some columns; each x is loaded once and serves all n sums from registers."""

import torch
import triton
import triton.language as tl

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

    # y[t, i, c] = sum_j h_res[t, i, j] x[t, j, c] + h_post[t, i] f[t, c]
    h_post_t = h_post + t * n
    h_res_t = h_res + t * (n * n)
    for i in tl.static_range(n):
        total = tl.load(h_post_t + i, mask=live, other=0.0)[:, None] * f_t
        for j in tl.static_range(n):
            total += tl.load(h_res_t + (i * n + j), mask=live, other=0.0)[:, None] * xs[j]
        tl.store(y + tile + i * C, total.to(y.dtype.element_ty), mask=mask)


def _tile(C):
    """Tokens and columns of a tile: 2048 elements, 8 per thread, so that bf16 moves in 16-byte vectors.

    Wide tiles reload the weights less often; the widest is taken that leaves at most an eighth of the lanes without a
    column.
    """
    wide = [c for c in (1024, 512) if -C % c * 8 <= C]
    block_c = wide[0] if wide else min(256, triton.next_power_of_2(C))
    return 2048 // block_c, block_c


def post_res(x, f, h_post, h_res):
    """Mix the residual streams and add the layer's output, accumulated in fp32; x and f are read once.

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
    x, f, h_post, h_res = (tensor.contiguous() for tensor in (x, f, h_post, h_res))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block_t, block_c = _tile(C)
    blocks = triton.cdiv(T, block_t)
    # Tiles of one token follow each other, for the memory's rows; two axes, because one ends at 65535.
    grid = (triton.cdiv(C, block_c), min(blocks, 65535), triton.cdiv(blocks, 65535))
    with torch.cuda.device_of(x):
        _post_res[grid](x, f, h_post, h_res, y, T, C, n, block_t, block_c, num_warps=8, enable_fp_fusion=True)
    return y


def _expect(name, tensor, shape, dtype, device):
    if (tensor.shape, tensor.dtype, tensor.device) != (shape, dtype, device):
        raise ValueError(f"{name}: expected {list(shape)} {dtype} on {device}; got {_is(tensor)}")


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
