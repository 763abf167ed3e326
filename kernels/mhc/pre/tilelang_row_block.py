"""One block per token and slice of C; each thread sums 16 bytes of every stream."""

import math

import tilelang.language as T
import torch
from torch import Tensor

from perflab.measure.operators import Operator
from perflab.measure.tile_kernel import alloc_shared, dtype_name, row_split, tile_kernel

REQUIRES = ("torch", "tilelang")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)
#: Parts in which the threads of a backward block are summed, side by side.
PARTS = 4


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


@tile_kernel(enable_lower_ldgstg=True, enable_lower_ldgstg_predicated=True)
def weighted_sum_backward(n, C, dtype, wanted):
    """Gradients of x and h_pre by one block per token, which walks C; `wanted` says which are stored."""
    tokens = T.dynamic("tokens", "int64")
    vector, threads = token_walk(C, dtype)
    dx_wanted, dh_wanted = wanted

    @T.prim_func
    def weighted_sum_backward(
        du: T.Tensor((tokens, C), dtype),
        x: T.Tensor((tokens, n, C), dtype),
        h_pre: T.Tensor((tokens, n), "float32"),
        dx: T.Tensor((tokens, n, C), dtype),
        dh_pre: T.Tensor((tokens, n), "float32"),
    ):
        with T.Kernel(tokens, threads=threads) as t:
            of_thread = alloc_shared((threads, n | 1), "float32")
            of_part = alloc_shared((PARTS, n), "float32")
            streams = T.alloc_local((n, vector), dtype)
            cotangent = T.alloc_local((vector,), dtype)
            row = T.alloc_local((vector,), "float32")
            weights = T.alloc_local((n,), "float32")
            dh = T.alloc_local((n,), "float32")
            total = T.alloc_local((1,), "float32")
            for thread in T.Parallel(threads):
                for i in T.vectorized(n):
                    weights[i] = h_pre[t, i]
                for i in T.unroll(n):
                    dh[i] = 0
                # Unrolled, the loop would take registers from other blocks, whose loads hide more of the wait.
                for step in T.unroll(T.ceildiv(C, threads * vector), annotations={"pragma_unroll_factor": 1}):
                    first = (step * threads + thread) * vector
                    if first < C:
                        for c in T.vectorized(vector):
                            cotangent[c] = du[t, first + c]
                        if dh_wanted:
                            for i in T.unroll(n):
                                for c in T.vectorized(vector):
                                    streams[i, c] = x[t, i, first + c]
                        # dx[t, i, c] = h_pre[t, i] du[t, c]
                        if dx_wanted:
                            for i in T.unroll(n):
                                for c in T.unroll(vector):
                                    row[c] = weights[i] * T.cast(cotangent[c], "float32")
                                for c in T.vectorized(vector):
                                    dx[t, i, first + c] = T.cast(row[c], dtype)
                        # dh_pre[t, i] = sum_c du[t, c] x[t, i, c]
                        if dh_wanted:
                            for i in T.unroll(n):
                                for c in T.unroll(vector):
                                    dh[i] += T.cast(cotangent[c], "float32") * T.cast(streams[i, c], "float32")
                if dh_wanted:
                    for i in T.unroll(n):
                        of_thread[thread, i] = dh[i]
            # The threads' sums are added in a fixed order: first within each part of the block, then the parts.
            if dh_wanted:
                for part, i in T.Parallel(PARTS, n):
                    total[0] = 0
                    for thread in T.serial(threads // PARTS):
                        total[0] += of_thread[part * (threads // PARTS) + thread, i]
                    of_part[part, i] = total[0]
                for i in T.Parallel(n):
                    total[0] = 0
                    for part in T.serial(PARTS):
                        total[0] += of_part[part, i]
                    dh_pre[t, i] = total[0]

    return weighted_sum_backward


def token_walk(C, dtype):
    """Elements of a thread's vector, and threads, of a block that walks a whole row of C in equal steps.

    A vector is 16 bytes, or the largest that divides C: then none crosses the row's end.
    """
    vector = math.gcd(C, 4 if dtype == "float32" else 8)
    lanes = C // vector
    steps = math.ceil(lanes / 128)
    return vector, 32 * math.ceil(lanes / steps / 32)


def _outputs(x, h_pre):
    del h_pre
    return x.new_empty(x.shape[0], x.shape[2])


def _forward(x: Tensor, h_pre: Tensor) -> Tensor:
    u = _outputs(x, h_pre)
    weighted_sum(*x.shape[1:], dtype_name(x, "x"))(x, h_pre, u)
    return u


def _backward(needs, du, x, h_pre):
    # What is not wanted is not stored: any tensor of its shape may stand in for it.
    dx, dh_pre = (torch.empty_like(one) if need else one for one, need in zip((x, h_pre), needs, strict=True))
    weighted_sum_backward(*x.shape[1:], dtype_name(x, "x"), tuple(needs))(du, x, h_pre, dx, dh_pre)
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
