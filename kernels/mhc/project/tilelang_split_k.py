"""tf32 tensor cores over slices of n C, so that few tokens fill the GPU; a second kernel adds the slices in order."""

import math

import tilelang.language as T
import torch
from tilelang.layout import make_swizzled_layout
from torch import Tensor

from perflab.measure.operators import Operator
from perflab.measure.tile_kernel import alloc_shared, dtype_name, for_c_target, multiprocessors, tile_kernel

from ._tilelang_backward import TF32_BITS, gradients

REQUIRES = ("torch", "tilelang")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)

TOKENS = 128
DEPTH = 32
THREADS = 128
STAGES = 4


@tile_kernel()
def multiply_slices(D, K, dtype):
    """Each slice's share of x phi and of sum x^2, from one read of x."""
    tokens = T.dynamic("tokens", "int64")
    slices = T.dynamic("slices", "int64")
    columns = math.ceil(K / 8) * 8
    steps = math.ceil(D / DEPTH)
    exact = dtype != "float32"
    rows = block_tokens(K, dtype)

    @T.prim_func
    def multiply_slices(
        x: T.Tensor((tokens, D), dtype),
        phi: T.Tensor((D, K), "float32"),
        products: T.Tensor((slices, tokens, K), "float32"),
        squares: T.Tensor((slices, tokens), "float32"),
        length: T.int32,
    ):
        with T.Kernel(T.ceildiv(tokens, rows), slices, threads=THREADS) as (block, s):
            if not for_c_target():
                # Two blocks hide each other's waits better than one with registers to spare.
                T.annotate_min_blocks_per_sm(blocks_per_sm(K, dtype))
                T.no_set_max_nreg()
            x_tile = alloc_shared((rows, DEPTH), dtype)
            phi_tile = alloc_shared((DEPTH, columns), "float32")
            if not for_c_target():
                # Threads read a column of eight rows at a time; unswizzled, those rows share their banks.
                T.annotate_layout({x_tile: make_swizzled_layout(x_tile)})
            high = T.alloc_fragment((rows, DEPTH), "float32")
            low = T.alloc_fragment((rows, DEPTH), "float32")
            part = T.alloc_fragment((rows, columns), "float32")
            product = T.alloc_fragment((rows, columns), "float32")
            square = T.alloc_fragment((rows, DEPTH), "float32")
            norm = T.alloc_fragment((rows,), "float32")
            first = s * length
            for t, k in T.Parallel(rows, columns):
                product[t, k] = 0
            for t, d in T.Parallel(rows, DEPTH):
                square[t, d] = 0
            for step in T.Pipelined(T.min(length, steps - first), num_stages=STAGES):
                T.copy(x[block * rows, (first + step) * DEPTH], x_tile)
                T.copy(phi[(first + step) * DEPTH, 0], phi_tile)
                for t, d in T.Parallel(rows, DEPTH):
                    high[t, d] = T.cast(x_tile[t, d], "float32")
                # squares[s, t] = sum_d x[t, d]^2
                for t, d in T.Parallel(rows, DEPTH):
                    square[t, d] += high[t, d] * high[t, d]
                # products[s, t, k] = sum_d x[t, d] phi[d, k]. Tensor cores cut off what they add, which would drift
                # over a slice: they add one step, and plain additions the steps.
                for t, k in T.Parallel(rows, columns):
                    part[t, k] = 0
                if not exact:
                    # tf32 keeps 11 of fp32's 24 significant bits: x = high + low carries 22 of them.
                    for t, d in T.Parallel(rows, DEPTH):
                        low[t, d] = high[t, d]
                        high[t, d] = T.reinterpret(T.reinterpret(low[t, d], "uint32") & TF32_BITS, "float32")
                        low[t, d] -= high[t, d]
                    T.gemm(low, phi_tile, part, policy=T.GemmWarpPolicy.FullRow)
                T.gemm(high, phi_tile, part, policy=T.GemmWarpPolicy.FullRow)
                for t, k in T.Parallel(rows, columns):
                    product[t, k] += part[t, k]
            if for_c_target():
                # The C target sums no fragments; its loop is what reduce_sum does across threads.
                for t in T.Parallel(rows):
                    norm[t] = 0
                    for d in T.serial(DEPTH):
                        norm[t] += square[t, d]
            else:
                T.reduce_sum(square, norm, dim=1)
            for t in T.Parallel(rows):
                squares[s, block * rows + t] = norm[t]
            for t, k in T.Parallel(rows, columns):
                if k < K:
                    products[s, block * rows + t, k] = product[t, k]

    return multiply_slices


@tile_kernel()
def add_slices(K):
    """Sums over the slices, in order, and the root of the mean square."""
    tokens = T.dynamic("tokens", "int64")
    slices = T.dynamic("slices", "int64")

    @T.prim_func
    def add_slices(
        products: T.Tensor((slices, tokens, K), "float32"),
        squares: T.Tensor((slices, tokens), "float32"),
        m: T.Tensor((tokens, K), "float32"),
        r: T.Tensor((tokens,), "float32"),
        D: T.int32,
        eps: T.float32,
    ):
        with T.Kernel(T.ceildiv(tokens, THREADS // 4), threads=THREADS) as block:
            total = T.alloc_fragment((THREADS // 4, K), "float32")
            square = T.alloc_fragment((THREADS // 4,), "float32")
            first = block * (THREADS // 4)
            # m[t, k] = sum_s products[s, t, k]
            for t, k in T.Parallel(THREADS // 4, K):
                total[t, k] = 0
            for s in T.serial(slices):
                for t, k in T.Parallel(THREADS // 4, K):
                    if first + t < tokens:
                        total[t, k] += products[s, first + t, k]
            for t, k in T.Parallel(THREADS // 4, K):
                m[first + t, k] = total[t, k]
            # r[t] = sqrt(sum_s squares[s, t] / (n C) + eps)
            for t in T.Parallel(THREADS // 4):
                square[t] = 0
            for s in T.serial(slices):
                for t in T.Parallel(THREADS // 4):
                    if first + t < tokens:
                        square[t] += squares[s, first + t]
            for t in T.Parallel(THREADS // 4):
                r[first + t] = T.sqrt(square[t] / T.cast(D, "float32") + eps)

    return add_slices


def _outputs(x, phi, eps):
    del eps
    return x.new_empty(x.shape[0], phi.shape[1], dtype=torch.float32), x.new_empty(x.shape[0], dtype=torch.float32)


def _forward(x: Tensor, phi: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    m, r = _outputs(x, phi, eps)
    products, squares = sliced(x, phi)
    add_slices(phi.shape[1])(products, squares, m, r, phi.shape[0], eps)
    return m, r


def sliced(x, phi):
    """Each slice's share of x phi, [slices, T, K], and of sum x^2, [slices, T]."""
    tokens, n, C = x.shape
    D, K = n * C, n * n + 2 * n
    dtype = dtype_name(x, "x")
    slices, length = split(tokens, math.ceil(D / DEPTH), blocks_per_sm(K, dtype) * multiprocessors(x))
    products, squares = (x.new_empty(shape, dtype=torch.float32) for shape in ((slices, tokens, K), (slices, tokens)))
    multiply_slices(D, K, dtype)(x.view(tokens, D), phi, products, squares, length)
    return products, squares


def _backward(needs, dm, dr, x, phi, r, eps):
    del eps
    return gradients(needs, x, phi, r, dm, dr)


_operator = Operator(_forward, _backward, _outputs, keeps=(1,))


def project(x, phi, *, eps=1e-20):
    """Project a token's streams onto the coefficients, and take their root mean square, in one pass over x.

    Backward too reads x once, for both gradients.

    x      [T, n, C]       stream dtype
    phi    [n*C, n*n+2*n]  fp32 that tf32 holds exactly
    gives  m [T, n*n+2*n], r [T], fp32: vec(x) phi and sqrt(sum x^2 / (n C) + eps)

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    check(x, phi)
    return _operator(x, phi, eps)


def check(x, phi):
    """What project and read want of their tensors. Fails: ValueError."""
    if x.dim() != 3 or x.shape[1] not in (1, 2, 4, 8) or x.shape[2] < 1 or x.dtype not in STREAMS:
        raise ValueError(f"x: expected [T, n, C] with n in 1, 2, 4, 8 in bf16, fp16 or fp32; got {_is(x)}")
    _, n, C = x.shape
    expected = [n * C, n * n + 2 * n]
    if (list(phi.shape), phi.dtype, phi.device) != (expected, torch.float32, x.device):
        raise ValueError(f"phi: expected {expected} torch.float32 on {x.device}; got {_is(phi)}")


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"


def split(tokens, steps, slots):
    """Number of slices and their length in steps: full waves of blocks, no slice below eight steps."""
    blocks = max(1, math.ceil(tokens / TOKENS))
    slices = min(range(1, max(4, slots // blocks) + 1), key=lambda count: math.ceil(blocks * count / slots) / count)
    length = max(min(8, steps), math.ceil(steps / slices))
    return math.ceil(steps / length), length


def block_tokens(K, dtype):
    """Tokens of a block: fewer where both halves of x meet many columns, for want of registers."""
    return TOKENS // 2 if K > 32 and dtype == "float32" else TOKENS


def blocks_per_sm(K, dtype):
    """Blocks whose registers fit a multiprocessor together: two, unless many columns or both halves of x are held."""
    return 2 if K <= 32 and dtype != "float32" else 1
