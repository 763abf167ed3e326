"""One launch for all sites: a tile of columns stays in registers from site to site; of the streams only x is read."""

import torch
import triton
import triton.language as tl

from ..post_res.triton_column_tiles import _mix
from ..pre.triton_column_tiles import _read, _tile

REQUIRES = ("torch", "triton")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit(do_not_specialize=["T"])
def _rebuild(
    x,
    fs,
    h_pres,
    h_posts,
    h_ress,
    xs,
    us,
    T,
    L: tl.constexpr,
    C: tl.constexpr,
    n: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    block = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    # 64 bits, because T n C may pass 2^31.
    t = block.to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = t < T
    mask = live[:, None] & (c < C)[None, :]
    row = (t * C)[:, None] + c[None, :]
    tile = (t * (n * C))[:, None] + c[None, :]

    streams = ()
    for i in tl.static_range(n):
        streams += (tl.load(x + tile + i * C, mask=mask, other=0.0).to(tl.float32),)
    if L > 1:
        # Not unrolled: the compiler's time grows with the cube of the number of loads and stores.
        for site in range(L - 1):
            x_next = _choose(xs, site, L - 1)
            # All loads of a site stand before the first use, too.
            f_t = tl.load(_choose(fs, site, L - 1) + row, mask=mask, other=0.0).to(tl.float32)
            # u_l[t] = sum_i h_pre_l[t, i] x_l[t, i]
            u_t = _read(streams, _choose(h_pres, site, L) + t * n, live, n)
            tl.store(_choose(us, site, L) + row, u_t.to(x.dtype.element_ty), mask=mask)
            # x_{l+1}[t, i] = sum_j h_res_l[t, i, j] x_l[t, j] + h_post_l[t, i] f_l[t], rounded as it would be in memory
            h_post_t = _choose(h_posts, site, L - 1) + t * n
            h_res_t = _choose(h_ress, site, L - 1) + t * (n * n)
            mixed = ()
            for i in tl.static_range(n):
                y_i = _mix(streams, f_t, h_post_t, h_res_t, live, i, n).to(x.dtype.element_ty)
                tl.store(x_next + tile + i * C, y_i, mask=mask)
                mixed += (y_i.to(tl.float32),)
            streams = mixed
    u_t = _read(streams, h_pres[L - 1] + t * n, live, n)
    tl.store(us[L - 1] + row, u_t.to(x.dtype.element_ty), mask=mask)


@triton.jit
def _choose(pointers, site, count: tl.constexpr):
    # pointers[site], for a site that is known only when the kernel runs
    chosen = pointers[0]
    for k in tl.static_range(1, count):
        chosen = tl.where(site == k, pointers[k], chosen)
    return chosen


def recompute(x, f, h_pre, h_post, h_res):
    """Every site's streams and layer input, from the first streams and the layers' outputs; gives no gradients.

    x       [T, n, C]      bf16, fp16 or fp32   streams of the first site, n in 1, 2, 4, 8
    f       [L-1, T, C]    x's dtype            outputs of the layer functions but the last; L sites, at least 1
    h_pre   [L, T, n]      fp32                 read weights
    h_post  [L-1, T, n]    fp32                 write weights
    h_res   [L-1, T, n, n] fp32                 mixing weights, [out, in]
    gives   xs [L-1, T, n, C], the streams of all sites but the first, and us [L, T, C], in x's dtype: bit by bit what
            `pre` and `post_res` of triton_column_tiles give one site after the other

    A kernel is compiled for every L. Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    if h_pre.dim() != 3 or h_pre.shape[0] < 1:
        raise ValueError(f"h_pre: expected [L, T, n] with L at least 1; got {_is(h_pre)}")
    sites = h_pre.shape[0]
    for name, tensor, dims in (("f", f, 3), ("h_post", h_post, 3), ("h_res", h_res, 4)):
        if tensor.dim() != dims or tensor.shape[0] != sites - 1:
            raise ValueError(f"{name}: expected {dims} dimensions, the first {sites - 1}; got {_is(tensor)}")
    _expect_streams(x)
    xs = x.new_empty((sites - 1, *x.shape))
    us = x.new_empty((sites, x.shape[0], x.shape[2]))
    rebuild(x, *(tensor.unbind() for tensor in (f, h_pre, h_post, h_res)), into=(xs.unbind(), us.unbind()))
    return xs, us


def rebuild(x, fs, h_pres, h_posts, h_ress, into=None):
    """`recompute` of separate tensors, as a model has them: nothing is stacked or copied.

    x        [T, n, C] bf16, fp16 or fp32    fs      L-1 of [T, C], x's dtype   h_pres  L of [T, n] fp32
    h_posts  L-1 of [T, n] fp32              h_ress  L-1 of [T, n, n] fp32
    into     where to write: contiguous tensors shaped as the results, or None for new ones
    gives    xs, L-1 of [T, n, C], and us, L of [T, C], two lists in x's dtype

    Fails: ValueError for any other shape, dtype or count, or inputs on different devices.
    """
    _expect_streams(x)
    T, n, C = x.shape
    sites = len(h_pres)
    if sites < 1 or not len(fs) == len(h_posts) == len(h_ress) == sites - 1:
        counts = f"{len(fs)} fs, {sites} h_pres, {len(h_posts)} h_posts, {len(h_ress)} h_ress"
        raise ValueError(f"expected L h_pres with L at least 1 and L-1 of the others; got {counts}")
    _expect("fs", fs, (T, C), x.dtype, x.device)
    _expect("h_pres", h_pres, (T, n), torch.float32, x.device)
    _expect("h_posts", h_posts, (T, n), torch.float32, x.device)
    _expect("h_ress", h_ress, (T, n, n), torch.float32, x.device)
    if into is None:
        into = [x.new_empty(x.shape) for _ in fs], [x.new_empty(T, C) for _ in h_pres]
    xs, us = into
    inputs = (tuple(tensor.contiguous() for tensor in tensors) for tensors in (fs, h_pres, h_posts, h_ress))
    block_t, block_c = _tile(C)
    # Two generations of eight streams leave registers for half a tile.
    block_t = block_t // 2 if n == 8 else block_t
    blocks = triton.cdiv(T, block_t)
    # Tiles of one token follow each other, for the memory's rows; two axes, because one ends at 65535.
    grid = (triton.cdiv(C, block_c), min(blocks, 65535), triton.cdiv(blocks, 65535))
    with torch.cuda.device_of(x):
        _rebuild[grid](
            x.contiguous(),
            *inputs,
            tuple(xs),
            tuple(us),
            T,
            sites,
            C,
            n,
            block_t,
            block_c,
            num_warps=8,
            enable_fp_fusion=True,
        )
    return list(xs), list(us)


def _expect_streams(x):
    if x.dim() != 3 or x.shape[1] not in (1, 2, 4, 8) or x.shape[2] < 1 or x.dtype not in STREAMS:
        raise ValueError(f"x: expected [T, n, C] with n in 1, 2, 4, 8 in bf16, fp16 or fp32; got {_is(x)}")


def _expect(name, tensors, shape, dtype, device):
    for index, tensor in enumerate(tensors):
        if (tensor.shape, tensor.dtype, tensor.device) != (shape, dtype, device):
            raise ValueError(f"{name}[{index}]: expected {list(shape)} {dtype} on {device}; got {_is(tensor)}")


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
