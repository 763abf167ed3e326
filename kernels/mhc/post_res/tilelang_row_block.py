"""One block per token and slice of C; each thread holds 16 bytes of every stream and writes all n rows from them."""

import tilelang.language as T
import torch
from torch import Tensor

from perflab.measure.operators import Operator
from perflab.measure.tile_kernel import alloc_shared, dtype_name, row_split, tile_kernel

from ..pre.tilelang_row_block import PARTS, token_walk

REQUIRES = ("torch", "tilelang")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)


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


@tile_kernel(enable_lower_ldgstg=True, enable_lower_ldgstg_predicated=True)
def mix_backward(n, C, dtype, wanted):
    """Gradients of x, f, h_post and h_res by one block per token, which walks C; `wanted` says which are stored."""
    tokens = T.dynamic("tokens", "int64")
    vector, threads = token_walk(C, dtype)
    dx_wanted, df_wanted, post_wanted, res_wanted = wanted
    sums = n * n + n

    @T.prim_func
    def mix_backward(
        dy: T.Tensor((tokens, n, C), dtype),
        x: T.Tensor((tokens, n, C), dtype),
        f: T.Tensor((tokens, C), dtype),
        h_post: T.Tensor((tokens, n), "float32"),
        h_res: T.Tensor((tokens, n, n), "float32"),
        dx: T.Tensor((tokens, n, C), dtype),
        df: T.Tensor((tokens, C), dtype),
        dh_post: T.Tensor((tokens, n), "float32"),
        dh_res: T.Tensor((tokens, n, n), "float32"),
    ):
        with T.Kernel(tokens, threads=threads) as t:
            # One column per sum: dh_res row by row, then dh_post. An odd width keeps threads off each other's banks.
            of_thread = alloc_shared((threads, sums | 1), "float32")
            of_part = alloc_shared((PARTS, sums), "float32")
            cotangents = T.alloc_local((n, vector), dtype)
            streams = T.alloc_local((n, vector), dtype)
            update = T.alloc_local((vector,), dtype)
            row = T.alloc_local((vector,), "float32")
            gains = T.alloc_local((n,), "float32")
            weights = T.alloc_local((n, n), "float32")
            d_post = T.alloc_local((n,), "float32")
            d_res = T.alloc_local((n, n), "float32")
            total = T.alloc_local((1,), "float32")
            for thread in T.Parallel(threads):
                for i in T.vectorized(n):
                    gains[i] = h_post[t, i]
                for i in T.unroll(n):
                    for j in T.vectorized(n):
                        weights[i, j] = h_res[t, i, j]
                for i in T.unroll(n):
                    d_post[i] = 0
                    for j in T.unroll(n):
                        d_res[i, j] = 0
                # Unrolled, the loop would take registers from other blocks, whose loads hide more of the wait.
                for step in T.unroll(T.ceildiv(C, threads * vector), annotations={"pragma_unroll_factor": 1}):
                    first = (step * threads + thread) * vector
                    if first < C:
                        # Every input element is loaded here, once, before the first sum.
                        for i in T.unroll(n):
                            for c in T.vectorized(vector):
                                cotangents[i, c] = dy[t, i, first + c]
                        if res_wanted:
                            for j in T.unroll(n):
                                for c in T.vectorized(vector):
                                    streams[j, c] = x[t, j, first + c]
                        if post_wanted:
                            for c in T.vectorized(vector):
                                update[c] = f[t, first + c]
                        # dx[t, j, c] = sum_i h_res[t, i, j] dy[t, i, c]
                        if dx_wanted:
                            for j in T.unroll(n):
                                for c in T.unroll(vector):
                                    row[c] = 0
                                    for i in T.unroll(n):
                                        row[c] += weights[i, j] * T.cast(cotangents[i, c], "float32")
                                for c in T.vectorized(vector):
                                    dx[t, j, first + c] = T.cast(row[c], dtype)
                        # df[t, c] = sum_i h_post[t, i] dy[t, i, c]
                        if df_wanted:
                            for c in T.unroll(vector):
                                row[c] = 0
                                for i in T.unroll(n):
                                    row[c] += gains[i] * T.cast(cotangents[i, c], "float32")
                            for c in T.vectorized(vector):
                                df[t, first + c] = T.cast(row[c], dtype)
                        # dh_post[t, i] = sum_c dy[t, i, c] f[t, c]
                        if post_wanted:
                            for i, c in T.grid(n, vector):
                                d_post[i] += T.cast(cotangents[i, c], "float32") * T.cast(update[c], "float32")
                        # dh_res[t, i, j] = sum_c dy[t, i, c] x[t, j, c]
                        if res_wanted:
                            for i, j, c in T.grid(n, n, vector):
                                d_res[i, j] += T.cast(cotangents[i, c], "float32") * T.cast(streams[j, c], "float32")
                for i in T.unroll(n):
                    of_thread[thread, n * n + i] = d_post[i]
                    for j in T.unroll(n):
                        of_thread[thread, i * n + j] = d_res[i, j]
            # The threads' sums are added in a fixed order: first within each part of the block, then the parts.
            if post_wanted or res_wanted:
                for part, k in T.Parallel(PARTS, sums):
                    total[0] = 0
                    for thread in T.serial(threads // PARTS):
                        total[0] += of_thread[part * (threads // PARTS) + thread, k]
                    of_part[part, k] = total[0]
                for k in T.Parallel(sums):
                    total[0] = 0
                    for part in T.serial(PARTS):
                        total[0] += of_part[part, k]
                    if res_wanted and k < n * n:
                        dh_res[t, k // n, k % n] = total[0]
                    if post_wanted and k >= n * n:
                        dh_post[t, k - n * n] = total[0]

    return mix_backward


def _outputs(x, f, h_post, h_res):
    del f, h_post, h_res
    return torch.empty_like(x)


def _forward(x: Tensor, f: Tensor, h_post: Tensor, h_res: Tensor) -> Tensor:
    y = torch.empty_like(x)
    mix(*x.shape[1:], dtype_name(x, "x"))(x, f, h_post, h_res, y)
    return y


def _backward(needs, dy, *inputs):
    # What is not wanted is not stored: any tensor of its shape may stand in for it.
    found = [torch.empty_like(one) if need else one for one, need in zip(inputs, needs, strict=True)]
    mix_backward(*dy.shape[1:], dtype_name(dy, "dy"), tuple(needs))(dy, *inputs, *found)
    return found


_operator = Operator(_forward, _backward, _outputs)


def post_res(x, f, h_post, h_res):
    """Residual mix and write-back of the layer's output in one pass, accumulated in fp32; backward is one pass too.

    x       [T, n, C] bf16, fp16 or fp32   residual streams, n in 1, 2, 4, 8
    f       [T, C]    x's dtype            what the layer function gave
    h_post  [T, n]    fp32                 weight of f in each stream
    h_res   [T, n, n] fp32                 mixing matrix, [out, in]
    gives   [T, n, C] x's dtype            h_post f first, then the streams in order: sums in this order have these bits

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
