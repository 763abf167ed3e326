"""One block per token and slice of C; each thread sums 16 bytes of every stream."""

import tilelang.language as T
import torch

from perflab.measure.tile_kernel import dtype_name, row_split, sizes, tile_kernel

REQUIRES = ("torch", "tilelang")


# Left to itself, nvcc splits a kernel's last 16-byte store into four.
@tile_kernel(enable_lower_ldgstg=True, enable_lower_ldgstg_predicated=True)
def weighted_sum(n, C, dtype):
    """u[t, c] = sum_i h_pre[t, i] x[t, i, c]."""
    tokens = T.dynamic("tokens", "int64")
    width, threads = row_split(C, dtype)

    @T.prim_func
    def weighted_sum(
        x: T.Tensor((tokens, n, C), dtype),
        h_pre: T.Tensor((tokens, n), "float32"),
        u: T.Tensor((tokens, C), dtype),
    ):
        with T.Kernel(tokens, T.ceildiv(C, width), threads=threads) as (t, block):
            streams = T.alloc_fragment((n, width), dtype)
            total = T.alloc_fragment((width,), "float32")
            weights = T.alloc_local((n,), "float32")
            # All loads are issued before the first sum, so that n of them are in flight per thread.
            for i in T.unroll(n):
                for c in T.Parallel(width):
                    streams[i, c] = x[t, i, block * width + c]
            for i in T.vectorized(n):
                weights[i] = h_pre[t, i]
            for c in T.Parallel(width):
                total[c] = 0
            # u[t, c] = sum_i h_pre[t, i] x[t, i, c]
            for i in T.unroll(n):
                for c in T.Parallel(width):
                    total[c] += weights[i] * T.cast(streams[i, c], "float32")
            for c in T.Parallel(width):
                u[t, block * width + c] = T.cast(total[c], dtype)

    return weighted_sum


def pre(x, h_pre):
    """Weighted sum of the residual streams, accumulated in fp32.

    x      [T, n, C] stream dtype   residual streams
    h_pre  [T, n]    fp32           weight of each stream
    gives  [T, C]    stream dtype

    Fails: ValueError if n is not 1, 2, 4 or 8.
    """
    tokens, n, C = sizes(x, "x", "T n C", n=(1, 2, 4, 8))
    u = torch.empty((tokens, C), dtype=x.dtype, device=x.device)
    weighted_sum(n, C, dtype_name(x, "x"))(x, h_pre, u)
    return u
