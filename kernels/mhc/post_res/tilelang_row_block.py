"""One block per token and slice of C; each thread holds 16 bytes of every stream and writes all n rows from them."""

import tilelang.language as T
import torch

from perflab.measure.tile_kernel import dtype_name, row_split, sizes, tile_kernel

REQUIRES = ("torch", "tilelang")


# Left to itself, nvcc splits a kernel's last 16-byte store into four.
@tile_kernel(enable_lower_ldgstg=True, enable_lower_ldgstg_predicated=True)
def mix(n, C, dtype):
    """y[t, i, c] = sum_j h_res[t, i, j] x[t, j, c] + h_post[t, i] f[t, c]."""
    tokens = T.dynamic("tokens", "int64")
    width, threads = row_split(C, dtype)

    @T.prim_func
    def mix(
        x: T.Tensor((tokens, n, C), dtype),
        f: T.Tensor((tokens, C), dtype),
        h_post: T.Tensor((tokens, n), "float32"),
        h_res: T.Tensor((tokens, n, n), "float32"),
        y: T.Tensor((tokens, n, C), dtype),
    ):
        with T.Kernel(tokens, T.ceildiv(C, width), threads=threads) as (t, block):
            streams = T.alloc_fragment((n, width), dtype)
            update = T.alloc_fragment((width,), dtype)
            row = T.alloc_fragment((width,), "float32")
            weights = T.alloc_local((n, n), "float32")
            gains = T.alloc_local((n,), "float32")
            # Every input element is loaded here, once, before the first row is computed.
            for j in T.unroll(n):
                for c in T.Parallel(width):
                    streams[j, c] = x[t, j, block * width + c]
            for c in T.Parallel(width):
                update[c] = f[t, block * width + c]
            for i in T.vectorized(n):
                gains[i] = h_post[t, i]
            for i in T.unroll(n):
                for j in T.vectorized(n):
                    weights[i, j] = h_res[t, i, j]
            # y[t, i, c] = sum_j h_res[t, i, j] x[t, j, c] + h_post[t, i] f[t, c]
            for i in T.unroll(n):
                for c in T.Parallel(width):
                    row[c] = gains[i] * T.cast(update[c], "float32")
                for j in T.unroll(n):
                    for c in T.Parallel(width):
                        row[c] += weights[i, j] * T.cast(streams[j, c], "float32")
                for c in T.Parallel(width):
                    y[t, i, block * width + c] = T.cast(row[c], dtype)

    return mix


def post_res(x, f, h_post, h_res):
    """Residual mix and write-back of the layer's output in one pass, accumulated in fp32.

    x       [T, n, C] stream dtype   residual streams
    f       [T, C]    stream dtype   what the layer function gave
    h_post  [T, n]    fp32           weight of f in each stream
    h_res   [T, n, n] fp32           mixing matrix, [out, in]
    gives   [T, n, C] stream dtype

    Fails: ValueError if n is not 1, 2, 4 or 8.
    """
    _, n, C = sizes(x, "x", "T n C", n=(1, 2, 4, 8))
    y = torch.empty_like(x)
    mix(n, C, dtype_name(x, "x"))(x, f, h_post, h_res, y)
    return y
