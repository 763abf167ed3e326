"""Three launches forward, five backward; one kernel adds all terms of the streams' gradient where it is written."""

import math

import tilelang.language as T
import torch
from torch import Tensor

from perflab import Unsupported
from perflab.measure.operators import Operator
from perflab.measure.tile_kernel import alloc_shared, dtype_name, tile_kernel

from ..activate.tilelang_element_rows import add_blocks
from ..pre.tilelang_row_block import weighted_sum, weighted_sum_backward
from ..project._tilelang_backward import gradients
from ..project.tilelang_split_k import check, sliced
from ..sinkhorn._tilelang_steps import steps
from ._tilelang_coefficients import LANES, SHARED_BYTES, undo

REQUIRES = ("torch", "tilelang")


@tile_kernel()
def coefficients(n, iterations):
    """m and r from their slices, and from them all coefficients: sigmoids, and exp(logits) balanced."""
    tokens = T.dynamic("tokens", "int64")
    slices = T.dynamic("slices", "int64")
    K = n * n + 2 * n
    first, columns, rows, _, _ = steps(n)

    @T.prim_func
    def coefficients(
        products: T.Tensor((slices, tokens, K), "float32"),
        squares: T.Tensor((slices, tokens), "float32"),
        a: T.Tensor((3,), "float32"),
        b: T.Tensor((K,), "float32"),
        h_pre: T.Tensor((tokens, n), "float32"),
        h_post: T.Tensor((tokens, n), "float32"),
        h_res: T.Tensor((tokens, n, n), "float32"),
        m: T.Tensor((tokens, K), "float32"),
        r: T.Tensor((tokens,), "float32"),
        D: T.int32,
        eps: T.float32,
    ):
        with T.Kernel(T.ceildiv(tokens, LANES), threads=4 * LANES) as block:
            raw = T.alloc_fragment((LANES, K), "float32")
            square = T.alloc_fragment((LANES,), "float32")
            h = alloc_shared((LANES, K + 1), "float32")
            M = T.alloc_local((n, n), "float32")
            sums = T.alloc_local((n,), "float32")
            total = T.alloc_local((1,), "float32")
            t0 = block * LANES
            # m[t, k] = sum_s products[s, t, k] and r[t] = sqrt(sum_s squares[s, t] / (n C) + eps)
            for t, k in T.Parallel(LANES, K):
                raw[t, k] = 0
            for s in T.serial(slices):
                for t, k in T.Parallel(LANES, K):
                    if t0 + t < tokens:
                        raw[t, k] += products[s, t0 + t, k]
            for t in T.Parallel(LANES):
                square[t] = 0
            for s in T.serial(slices):
                for t in T.Parallel(LANES):
                    if t0 + t < tokens:
                        square[t] += squares[s, t0 + t]
            for t, k in T.Parallel(LANES, K):
                h[t, k] = raw[t, k]
                if t0 + t < tokens:
                    m[t0 + t, k] = raw[t, k]
            for t in T.Parallel(LANES):
                h[t, K] = T.sqrt(square[t] / T.cast(D, "float32") + eps)
                if t0 + t < tokens:
                    r[t0 + t] = h[t, K]
            for lane in T.Parallel(LANES):
                t = t0 + lane
                if t < tokens:
                    # h_pre = sigmoid(a[0] m_pre / r + b_pre), h_post = 2 sigmoid(a[1] m_post / r + b_post)
                    for i in T.unroll(n):
                        h_pre[t, i] = 1 / (1 + T.exp(-(a[0] * h[lane, i] / h[lane, K] + b[i])))
                        h_post[t, i] = 2 / (1 + T.exp(-(a[1] * h[lane, n + i] / h[lane, K] + b[n + i])))
                    # h_res = a[2] m_res / r + b_res, balanced
                    for i in T.unroll(n):
                        for j in T.unroll(n):
                            M[i, j] = a[2] * h[lane, 2 * n + i * n + j] / h[lane, K] + b[2 * n + i * n + j]
                    first(M, sums, total)
                    for _ in T.serial(iterations - 1):
                        columns(M, sums, total)
                        rows(M, sums, total)
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            h_res[t, i, j] = M[i, j]

    return coefficients


def _outputs(x, phi, a, b, eps, iterations):
    del phi, a, eps, iterations
    tokens, n, C = x.shape
    shapes = (tokens, n), (tokens, n, n), (tokens, n), (tokens, b.shape[0]), (tokens,)
    return x.new_empty(tokens, C), *(x.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _forward(
    x: Tensor, phi: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    _, n, C = x.shape
    u, h_post, h_res, h_pre, m, r = outputs = _outputs(x, phi, a, b, eps, iterations)
    products, squares = sliced(x, phi)
    coefficients(n, iterations)(products, squares, a, b, h_pre, h_post, h_res, m, r, n * C, eps)
    weighted_sum(n, C, dtype_name(x, "x"))(x, h_pre, u)
    return outputs


def _backward(needs, du, dh_post, dh_res, *tensors_and_numbers):
    return _backward_through(needs, None, du, dh_post, dh_res, *tensors_and_numbers)


def _backward_through(needs, dx0, du, dh_post, dh_res, x, phi, a, b, h_pre, m, r, eps, iterations):
    del eps
    tokens, n, C = x.shape
    K = b.shape[0]
    dh_pre, dm, dr, da, db = (torch.empty_like(one) for one in (h_pre, m, r, a, b))
    parts = b.new_empty(K + 3, math.ceil(tokens / LANES))
    # x stands where its gradient would be written, which is not wanted here.
    weighted_sum_backward(n, C, dtype_name(x, "x"), (False, True))(du, x, h_pre, x, dh_pre)
    undo(n, iterations)(m, r, a, b, dh_pre, dh_post, dh_res, dm, dr, parts)
    if tokens == 0:
        da.zero_(), db.zero_()
    elif needs[2] or needs[3]:
        add_blocks(K)(parts, da, db)
    dx, dphi = gradients(needs[:2], x, phi, r, dm, dr, dx0, h_pre, du) if needs[0] or needs[1] else (None, None)
    return dx, dphi, da, db


_read = Operator(_forward, _backward, _outputs, keeps=(3, 4, 5), hidden=3)
_read_through = Operator(_forward, _backward_through, _outputs, keeps=(3, 4, 5), hidden=3, through=0)


def read(x, phi, a, b, *, eps=1e-20, iterations=20):
    """What a layer gets of the streams, and the coefficients with which its output is written back.

    x      [T, n, C]       stream dtype
    phi    [n*C, n*n+2*n]  fp32 that tf32 holds exactly
    a, b   [3], [n*n+2*n]  fp32   gates and biases in the order pre, post, res
    gives  u [T, C] in the stream dtype, h_post [T, n], h_res [T, n, n] in fp32

    Fails: ValueError for n not 1, 2, 4 or 8, shapes, dtypes or devices that do not fit, or no iteration; Unsupported if
    there are more iterations than a block has memory for.
    """
    _check(x, phi, a, b, iterations)
    return _read(x, phi, a, b, eps, iterations)


def read_through(x, phi, a, b, *, eps=1e-20, iterations=20):
    """`read` that hands x through, so that the gradient of its later uses is added where read's own is written.

    gives  x [T, n, C], u [T, C], h_pre [T, n], h_post [T, n], h_res [T, n, n]; h_pre has no gradient

    Fails: as `read`.
    """
    _check(x, phi, a, b, iterations)
    x, u, h_post, h_res, h_pre, _, _ = _read_through.everything(x, phi, a, b, eps, iterations)
    return x, u, h_pre, h_post, h_res


def _check(x, phi, a, b, iterations):
    check(x, phi)
    for name, tensor, size in (("a", a, 3), ("b", b, phi.shape[1])):
        found = list(tensor.shape), tensor.dtype, tensor.device
        if found != ([size], torch.float32, x.device):
            raise ValueError(f"{name}: expected [{size}] torch.float32 on {x.device}; got {' '.join(map(str, found))}")
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, but is {iterations}")
    if iterations * 2 * x.shape[1] * LANES * 4 > SHARED_BYTES:
        raise Unsupported(f"backward keeps the divisors of {iterations} iterations in shared memory, which has no room")
