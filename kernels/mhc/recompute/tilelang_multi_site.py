"""One launch for all sites: a block per token and slice of C keeps the streams in registers from site to site."""

import tilelang.language as T
import torch
from tilelang import tvm

from perflab.measure.tile_kernel import dtype_name, row_split, sizes, tile_kernel

from ..pre.tilelang_row_block import weighted_sum

REQUIRES = ("torch", "tilelang")

#: Declares a parameter of the function that is being traced: a number of them that the builder knows.
_parameter = tvm.script.ir_builder.tirx.arg


# Left to itself, nvcc splits a kernel's last 16-byte store into four.
@tile_kernel(enable_lower_ldgstg=True, enable_lower_ldgstg_predicated=True)
def walk(sites, n, C, dtype, stacked):
    """x_l and u_l of all sites l; every kind of tensor is one with l in front, or `sites` tensors without."""
    tokens = T.dynamic("tokens", "int64")
    width, threads = row_split(C, dtype)
    site_numbers = list(range(sites))

    @T.prim_func
    def walk(x: T.Tensor((tokens, n, C), dtype)):
        f = parameters("f", sites - 1, (tokens, C), dtype, stacked)
        h_pre = parameters("h_pre", sites, (tokens, n), "float32", stacked)
        h_post = parameters("h_post", sites - 1, (tokens, n), "float32", stacked)
        h_res = parameters("h_res", sites - 1, (tokens, n, n), "float32", stacked)
        xs = parameters("xs", sites - 1, (tokens, n, C), dtype, stacked)
        us = parameters("us", sites, (tokens, C), dtype, stacked)
        with T.Kernel(tokens, T.ceildiv(C, width), threads=threads) as (t, block):
            streams = T.alloc_fragment((n, width), dtype)
            mixed = T.alloc_fragment((n, width), dtype)
            update = T.alloc_fragment((width,), dtype)
            row = T.alloc_fragment((width,), "float32")
            weights = T.alloc_local((n,), "float32")
            gains = T.alloc_local((n,), "float32")
            mixing = T.alloc_local((n, n), "float32")
            c0 = block * width
            for i in T.unroll(n):
                for c in T.Parallel(width):
                    streams[i, c] = x[t, i, c0 + c]
            for site in site_numbers:
                at = (site,) if stacked else ()
                # What the site needs is on its way before its first sum.
                for i in T.vectorized(n):
                    weights[i] = h_pre[site][(*at, t, i)]
                if site + 1 < sites:
                    for c in T.Parallel(width):
                        update[c] = f[site][(*at, t, c0 + c)]
                    for i in T.vectorized(n):
                        gains[i] = h_post[site][(*at, t, i)]
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            mixing[i, j] = h_res[site][(*at, t, i, j)]
                # u[l, t, c] = sum_i h_pre[l, t, i] x_l[t, i, c]
                for c in T.Parallel(width):
                    row[c] = 0
                for i in T.unroll(n):
                    for c in T.Parallel(width):
                        row[c] += weights[i] * T.cast(streams[i, c], "float32")
                for c in T.Parallel(width):
                    us[site][(*at, t, c0 + c)] = T.cast(row[c], dtype)
                if site + 1 < sites:
                    # x_{l+1}[t, i, c] = sum_j h_res[l, t, i, j] x_l[t, j, c] + h_post[l, t, i] f[l, t, c], rounded as
                    # in memory
                    for i in T.unroll(n):
                        for c in T.Parallel(width):
                            row[c] = gains[i] * T.cast(update[c], "float32")
                        for j in T.unroll(n):
                            for c in T.Parallel(width):
                                row[c] += mixing[i, j] * T.cast(streams[j, c], "float32")
                        for c in T.Parallel(width):
                            mixed[i, c] = T.cast(row[c], dtype)
                    for i in T.unroll(n):
                        for c in T.Parallel(width):
                            streams[i, c] = mixed[i, c]
                        for c in T.Parallel(width):
                            xs[site][(*at, t, i, c0 + c)] = streams[i, c]

    return walk


def parameters(name, count, shape, dtype, stacked):
    """The kernel's tensors of one kind, by site: `count` of them, or one with the site in front."""
    if stacked:
        return [_parameter(name, T.Tensor((count, *shape), dtype))] * count
    return [_parameter(f"{name}_{site}", T.Tensor(shape, dtype)) for site in range(count)]


def recompute(x, f, h_pre, h_post, h_res):
    """Rebuild the streams and the layer inputs of a block of sites from its first streams, without running the layers.

    x       [T, n, C]       stream dtype   streams of the first site
    f       [L-1, T, C]     stream dtype   what each layer but the last gave
    h_pre   [L, T, n]       fp32           read weights
    h_post  [L-1, T, n]     fp32           write weights
    h_res   [L-1, T, n, n]  fp32           mixing matrices, [out, in]
    gives   xs [L-1, T, n, C], us [L, T, C], stream dtype: streams of all sites but the first, inputs of all layers

    Every bit is that of pre/tilelang_row_block and post_res/tilelang_row_block, called in turn. There is no gradient:
    what is rebuilt is for backward passes to read.

    Fails: ValueError if n is not 1, 2, 4 or 8, there is no site, or shapes, dtypes or devices do not fit; RuntimeError
    if a gradient is expected.
    """
    tokens, n, C = sizes(x, "x", "T n C", n=(1, 2, 4, 8))
    sites, _, _ = sizes(h_pre, "h_pre", "L T n")
    if sites < 1:
        raise ValueError("h_pre must have at least one site")
    xs, us = x.new_empty(sites - 1, tokens, n, C), x.new_empty(sites, tokens, C)
    dtype = dtype_name(x, "x")
    if sites > 1:
        walk(sites, n, C, dtype, True)(x, f, h_pre, h_post, h_res, xs, us)
    else:
        check_empty({"f": (f, (tokens, C)), "h_post": (h_post, (tokens, n)), "h_res": (h_res, (tokens, n, n))})
        weighted_sum(n, C, dtype)(x, h_pre[0], us[0])
    return xs, us


def rebuild(x, fs, h_pres, h_posts, h_ress):
    """`recompute` on a sequence of tensors of each kind, one per site, which need not lie together.

    gives lists xs of L-1 tensors [T, n, C] and us of L tensors [T, C]; L is the length of h_pres

    Fails: as `recompute`; also for sequences whose lengths do not fit.
    """
    tokens, n, C = sizes(x, "x", "T n C", n=(1, 2, 4, 8))
    sites = len(h_pres)
    if sites < 1 or {len(fs), len(h_posts), len(h_ress)} != {sites - 1}:
        raise ValueError(
            f"L h_pres want L-1 fs, h_posts and h_ress, L >= 1; got {sites}, {len(fs)}, {len(h_posts)}, {len(h_ress)}"
        )
    xs = [torch.empty_like(x) for _ in range(sites - 1)]
    us = [x.new_empty(tokens, C) for _ in range(sites)]
    walk(sites, n, C, dtype_name(x, "x"), False)(x, *fs, *h_pres, *h_posts, *h_ress, *xs, *us)
    return xs, us


def check_empty(tensors):
    """That each tensor has no site, and its shape behind. Fails: ValueError."""
    for name, (tensor, shape) in tensors.items():
        if list(tensor.shape) != [0, *shape]:
            raise ValueError(f"{name} must have shape {[0, *shape]}, but has {list(tensor.shape)}")
