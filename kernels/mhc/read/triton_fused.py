"""Three launches: the product, all coefficients from its parts in registers, the weighted sum; backward takes five."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.measure.operators import Operator

from ..pre.triton_column_tiles import _forward as weighted_sum
from ..pre.triton_column_tiles import _pre_backward
from ..project.triton_split_k import backward as project_backward
from ..project.triton_split_k import multiply
from ..sinkhorn.triton_registers import KEPT, balanced, balanced_backward, exponentials

REQUIRES = ("torch", "triton")
STREAMS = (torch.bfloat16, torch.float16, torch.float32)

# The kernels below hold a token's coefficients as a tuple of n + 2 rows [BLOCK_T, n]: pre, post, and the n rows of res.


@triton.jit(do_not_specialize=["T"])
def _coefficients(
    totals, squares, a, b, m, r, h_pre, h_post, h_res, T, eps, iterations: tl.constexpr, WIDTH: tl.constexpr,
    n: tl.constexpr, SPLITS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = n * n + 2 * n
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    j = tl.arange(0, n)
    live = t < T
    mask = live[:, None]
    row = (t * K)[:, None] + j[None, :]

    if SPLITS == 1:
        raw = _rows(m + row, mask, n, n + 2)
        r_t = tl.load(r + t, mask=live, other=1.0)
    else:
        # m[t, k] = sum_s totals[s, t, k], r[t] = sqrt(sum_s squares[s, t] / (n C) + eps)
        raw = ()
        for _ in tl.static_range(n + 2):
            raw += (tl.zeros([BLOCK_T, n], tl.float32),)
        square = tl.zeros([BLOCK_T], tl.float32)
        for first in range(0, SPLITS, BLOCK_S):
            s = first + tl.arange(0, BLOCK_S)
            part = s[:, None] * T.to(tl.int64) + t[None, :]
            parts = (s < SPLITS)[:, None] & live[None, :]
            square += tl.sum(tl.load(squares + part, mask=parts, other=0.0), 0)
            added = ()
            for g in tl.static_range(n + 2):
                at = totals + (part * K + g * n)[:, :, None] + j[None, None, :]
                added += (raw[g] + tl.sum(tl.load(at, mask=parts[:, :, None], other=0.0), 0),)
            raw = added
        r_t = tl.sqrt_rn(square / WIDTH + eps)
        for g in tl.static_range(n + 2):
            tl.store(m + row + g * n, raw[g], mask=mask)
        tl.store(r + t, r_t, mask=live)

    # h = (1 / r) [a_pre m_pre, a_post m_post, a_res m_res] + b; h_pre = sigmoid(h), h_post = 2 sigmoid(h)
    h = _scaled(raw, (1.0 / r_t)[:, None], a, b, n)
    at = (t * n)[:, None] + j[None, :]
    s, _ = _sigmoid(h[0])
    tl.store(h_pre + at, s, mask=mask)
    s, _ = _sigmoid(h[1])
    tl.store(h_post + at, 2.0 * s, mask=mask)
    M = balanced(exponentials(h[2:], n), iterations, n)
    for i in tl.static_range(n):
        tl.store(h_res + (t * n * n + i * n)[:, None] + j[None, :], M[i], mask=mask)


@triton.jit
def _rows(at, mask, n: tl.constexpr, count: tl.constexpr):
    rows = ()
    for g in tl.static_range(count):
        rows += (tl.load(at + g * n, mask=mask, other=0.0),)
    return rows


@triton.jit
def _scaled(raw, scale, a, b, n: tl.constexpr):
    rows = ()
    for g in tl.static_range(n + 2):
        bias = tl.load(b + g * n + tl.arange(0, n))
        rows += (scale * (tl.load(a + min(g, 2)) * raw[g]) + bias[None, :],)
    return rows


@triton.jit
def _sigmoid(h):
    """sigmoid(h) = e^min(h, 0) / (1 + e^-|h|), and its derivative e^-|h| / (1 + e^-|h|)^2."""
    e = tl.exp(-tl.abs(h))
    scale = 1.0 / (1.0 + e)
    return tl.where(h < 0.0, e, 1.0) / (1.0 + e), e * scale * scale


@triton.jit(do_not_specialize=["T"])
def _coefficients_backward(
    dh_pre, dh_post, dh_res, m, r, a, b, dm, dr, parts, T, iterations: tl.constexpr, EVERY: tl.constexpr,
    n: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    K: tl.constexpr = n * n + 2 * n
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    j = tl.arange(0, n)
    live = t < T
    mask = live[:, None]
    row = (t * K)[:, None] + j[None, :]
    at = (t * n)[:, None] + j[None, :]

    raw = _rows(m + row, mask, n, n + 2)
    scale = (1.0 / tl.load(r + t, mask=live, other=1.0))[:, None]
    h = _scaled(raw, scale, a, b, n)
    _, slope_pre = _sigmoid(h[0])
    _, slope_post = _sigmoid(h[1])
    dh = (
        tl.load(dh_pre + at, mask=mask, other=0.0) * slope_pre,
        tl.load(dh_post + at, mask=mask, other=0.0) * (2.0 * slope_post),
    )
    dM = _rows(dh_res + (t * n * n)[:, None] + j[None, :], mask, n, n)
    dh += balanced_backward(exponentials(h[2:], n), dM, iterations, EVERY, n)

    # dm = a dh / r, dr = -sum_k a m dh / r^2
    if dm is not None:
        total = tl.zeros([BLOCK_T, n], tl.float32)
        for g in tl.static_range(n + 2):
            dm_g = tl.load(a + min(g, 2)) * (dh[g] * scale)
            tl.store(dm + row + g * n, dm_g, mask=mask)
            total += dm_g * raw[g]
        tl.store(dr + t, -tl.sum(total * scale, 1), mask=live)
    # This block's part of da = sum_t m dh / r over each gate's coefficients, and of db = sum_t dh
    if parts is not None:
        to = parts + tl.program_id(0) * (K + 3)
        res = tl.zeros([BLOCK_T, n], tl.float32)
        gates = (dh[0] * (raw[0] * scale), dh[1] * (raw[1] * scale))
        for g in tl.static_range(n + 2):
            tl.store(to + 3 + g * n + j, tl.sum(dh[g], 0))
            if g >= 2:
                res += dh[g] * (raw[g] * scale)
        tl.store(to, tl.sum(gates[0]))
        tl.store(to + 1, tl.sum(gates[1]))
        tl.store(to + 2, tl.sum(res))


@triton.jit
def _add_blocks(parts, da, db, BLOCKS: tl.constexpr, K: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_K: tl.constexpr):
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_K], tl.float32)
    # da, db = sum_s parts[s], always in the same order
    for first in range(0, BLOCKS, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        mask = (s < BLOCKS)[:, None] & (k < K + 3)[None, :]
        total += tl.sum(tl.load(parts + (s * (K + 3))[:, None] + k[None, :], mask=mask, other=0.0), 0)
    tl.store(da + k, total, mask=k < 3)
    tl.store(db + k - 3, total, mask=(k >= 3) & (k < K + 3))


def _outputs(x, phi, a, b, eps, iterations):
    del a, b, eps, iterations
    T, n, C = x.shape
    shapes = (T, n), (T, n, n), (T, n), (T, phi.shape[1]), (T,)
    return x.new_empty(T, C), *(phi.new_empty(shape) for shape in shapes)


def _forward(
    x: Tensor, phi: Tensor, a: Tensor, b: Tensor, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    T, n, C = x.shape
    h_post, h_res, h_pre, m, r = _outputs(x, phi, a, b, eps, iterations)[1:]
    totals, squares, splits = multiply(x, phi, (m, r), eps)
    block_s = min(8, triton.next_power_of_2(splits))
    _coefficients[(triton.cdiv(T, 32),)](
        totals, squares, a, b, m, r, h_pre, h_post, h_res, T, eps, iterations, n * C, n, splits, block_s, 32,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return weighted_sum(x, h_pre), h_post, h_res, h_pre, m, r


def _gradients(needs, dx0, du, dh_post, dh_res, x, phi, a, b, h_pre, m, r, iterations):
    T, n, C = x.shape
    dh_pre = torch.empty_like(h_pre)
    block_c = min(1024, max(8, triton.next_power_of_2(C)))
    _pre_backward[(T,)](du, x, h_pre, None, dh_pre, C, n, block_c, num_warps=4, enable_fp_fusion=True)
    dm, dr = (torch.empty_like(m), torch.empty_like(r)) if needs[0] or needs[1] else (None, None)
    blocks, K = triton.cdiv(T, 32), n * n + 2 * n
    parts = phi.new_empty(blocks, K + 3) if needs[2] or needs[3] else None
    _coefficients_backward[(blocks,)](
        dh_pre, dh_post, dh_res, m, r, a, b, dm, dr, parts, T, iterations, triton.cdiv(iterations, KEPT), n, 32,
        num_warps=4 if n == 8 else 1, enable_fp_fusion=True,
    )  # fmt: skip
    da, db = (None, None) if parts is None else (torch.empty_like(a), torch.empty_like(b))
    if parts is not None:
        _add_blocks[(triton.cdiv(K + 3, 8),)](parts, da, db, blocks, K, 128, 8, num_warps=4, enable_fp_fusion=True)
    dx, dphi = (None, None) if dm is None else project_backward(needs[:2], dm, dr, x, phi, r, du, h_pre, dx0)
    return dx, dphi, da, db


def _backward(needs, du, dh_post, dh_res, x, phi, a, b, h_pre, m, r, eps, iterations):
    del eps
    return _gradients(needs, None, du, dh_post, dh_res, x, phi, a, b, h_pre, m, r, iterations)


def _backward_through(needs, dx0, du, dh_post, dh_res, x, phi, a, b, h_pre, m, r, eps, iterations):
    del eps
    return _gradients(needs, dx0, du, dh_post, dh_res, x, phi, a, b, h_pre, m, r, iterations)


_operator = Operator(_forward, _backward, _outputs, keeps=(3, 4, 5), hidden=3)
_operator_through = Operator(_forward, _backward_through, _outputs, keeps=(3, 4, 5), hidden=3, through=0)


def read(x, phi, a, b, *, eps=1e-20, iterations=20):
    """What the layer function gets, and with what its output will be written.

    x           [T, n, C]  bf16, fp16 or fp32   residual streams, n in 1, 2, 4, 8
    phi         [n*C, K]   fp32                 values that tf32 can represent; K = n^2 + 2n in the order pre, post, res
    a           [3]        fp32                 gates of pre, post, res
    b           [K]        fp32                 bias
    iterations  at least 1
    gives       u [T, C] x's dtype, h_post [T, n] fp32, h_res [T, n, n] fp32

    Fails: ValueError for any other shape or dtype, or inputs on different devices, or less than one iteration.
    """
    _expect(x, phi, a, b, iterations)
    return _operator(x, phi, a, b, float(eps), int(iterations))


def read_through(x, phi, a, b, *, eps=1e-20, iterations=20):
    """As `read`, with x for its other uses, whose gradient is then added where x's is written, and the read weights.

    gives  x, u, h_pre [T, n] fp32 without gradient, h_post, h_res
    """
    _expect(x, phi, a, b, iterations)
    x, u, h_post, h_res, h_pre, _, _ = _operator_through.everything(x, phi, a, b, float(eps), int(iterations))
    return x, u, h_pre, h_post, h_res


def _expect(x, phi, a, b, iterations):
    if x.dim() != 3 or x.shape[1] not in (1, 2, 4, 8) or x.shape[2] < 1 or x.dtype not in STREAMS:
        raise ValueError(f"x: expected [T, n, C] with n in 1, 2, 4, 8 in bf16, fp16 or fp32; got {_is(x)}")
    _, n, C = x.shape
    K = n * n + 2 * n
    for name, tensor, shape in (("phi", phi, (n * C, K)), ("a", a, (3,)), ("b", b, (K,))):
        if (tensor.shape, tensor.dtype, tensor.device) != (shape, torch.float32, x.device):
            raise ValueError(f"{name}: expected {list(shape)} torch.float32 on {x.device}; got {_is(tensor)}")
    if iterations < 1:
        raise ValueError(f"iterations: expected at least 1; got {iterations}")


def _is(tensor):
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
