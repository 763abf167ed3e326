"""One thread holds a token's whole matrix (two threads at n = 8), so that every step stays in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.measure.operators import Operator

REQUIRES = ("torch", "triton")
#: How often backward keeps the column scales of an iteration in registers; from those it computes the others again.
KEPT = 10


@triton.jit(do_not_specialize=["T"])
def _sinkhorn(logits, h_res, T, iterations: tl.constexpr, n: tl.constexpr, BLOCK_T: tl.constexpr):
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    rows = (t * n * n)[:, None] + tl.arange(0, n)[None, :]
    mask = (t < T)[:, None]

    # A tuple of n rows [BLOCK_T, n], rather than one block [BLOCK_T, n, n]: a sum over rows is then plain addition.
    M = ()
    for i in tl.static_range(n):
        M += (tl.load(logits + rows + i * n, mask=mask, other=0.0),)

    M = balanced(exponentials(M, n), iterations, n)
    for i in tl.static_range(n):
        tl.store(h_res + rows + i * n, M[i], mask=mask)


@triton.jit
def exponentials(logits, n: tl.constexpr):
    """M0[i, j] = exp(logits[i, j] - max_i logits[i, j]): the first column step cancels any factor of a column."""
    top = logits[0]
    for i in tl.static_range(1, n):
        top = tl.maximum(top, logits[i], propagate_nan=tl.PropagateNan.ALL)
    M0 = ()
    for i in tl.static_range(n):
        M0 += (tl.exp(logits[i] - top),)
    return M0


@triton.jit
def balanced(M, iterations, n: tl.constexpr):
    """The rows of the doubly stochastic matrix, from those of M0."""
    for _ in range(iterations):
        # M[i, j] <- M[i, j] / sum_i M[i, j]
        scale = 1.0 / _sum(M, n)
        # M[i, j] <- M[i, j] / sum_j M[i, j]
        step = ()
        for i in tl.static_range(n):
            row = M[i] * scale
            step += (row * (1.0 / tl.sum(row, 1, keep_dims=True)),)
        M = step
    return M


@triton.jit(do_not_specialize=["T"])
def _sinkhorn_backward(
    dh_res, logits, dlogits, T, iterations: tl.constexpr, EVERY: tl.constexpr, n: tl.constexpr, BLOCK_T: tl.constexpr
):
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    rows = (t * n * n)[:, None] + tl.arange(0, n)[None, :]
    mask = (t < T)[:, None]
    M, dM = (), ()
    for i in tl.static_range(n):
        M += (tl.load(logits + rows + i * n, mask=mask, other=0.0),)
        dM += (tl.load(dh_res + rows + i * n, mask=mask, other=0.0),)
    G = balanced_backward(exponentials(M, n), dM, iterations, EVERY, n)
    for i in tl.static_range(n):
        tl.store(dlogits + rows + i * n, G[i], mask=mask)


@triton.jit
def balanced_backward(M0, dM, iterations: tl.constexpr, EVERY: tl.constexpr, n: tl.constexpr):
    """The gradient of the logits, as rows, from M0 and the gradient dM of the balanced matrix."""
    # Every step only scales rows or columns. With the column scales v_k of iteration k, the matrix behind its column
    # step is w_(k-1) M0 v_k and behind its row step w_k M0 v_k, with row scales w_k = 1 / sum_j M0 v_k, and w_0 = 1.
    # So an iteration is told by its v, n numbers. They are kept at k = 1, 1 + EVERY, ...
    v = 1.0 / _sum(M0, n)
    kept = (v,)
    for _ in tl.static_range(EVERY, iterations, EVERY):
        v = _later(M0, v, EVERY, n)
        kept += (v,)

    # In terms of G = dM M, the gradient of log M, a step M' = M / sum(M) has G = G' - M' sum(G').
    v = _later(M0, v, (iterations - 1) % EVERY, n)
    w = _row_scales(M0, v, n)
    G = ()
    for i in tl.static_range(n):
        G += (dM[i] * (w[i] * (M0[i] * v)),)
    for undone in range(iterations - 1):
        k = iterations - 2 - undone
        before = _later(M0, choose(kept, k // EVERY, (iterations + EVERY - 1) // EVERY), k % EVERY, n)
        G = _undo_rows(G, M0, v, w, n)
        w = _row_scales(M0, before, n)
        total = _sum(G, n)
        step = ()
        for i in tl.static_range(n):
            step += (G[i] - w[i] * (M0[i] * v) * total,)
        G = step
        v = before
    G = _undo_rows(G, M0, v, w, n)
    total = _sum(G, n)
    # The gradient of log M0 is that of the logits: the maximum of a column takes no part, as the sum of G is 0 there.
    dlogits = ()
    for i in tl.static_range(n):
        dlogits += (G[i] - M0[i] * v * total,)
    return dlogits


@triton.jit
def choose(kept, index, count: tl.constexpr):
    """kept[index], for an index that is known only when the kernel runs."""
    chosen = kept[0]
    for k in tl.static_range(1, count):
        chosen = tl.where(index == k, kept[k], chosen)
    return chosen


@triton.jit
def _later(M0, v, iterations, n: tl.constexpr):
    # v_(k+1)[j] = v_k[j] / sum_i M[i, j], where M[i, j] = M0[i, j] v_k[j] / sum_j M0[i, j] v_k[j]
    for _ in range(iterations):
        w = _row_scales(M0, v, n)
        M = ()
        for i in tl.static_range(n):
            M += (w[i] * (M0[i] * v),)
        v *= 1.0 / _sum(M, n)
    return v


@triton.jit
def _undo_rows(G, M0, v, w, n: tl.constexpr):
    undone = ()
    for i in tl.static_range(n):
        undone += (G[i] - w[i] * (M0[i] * v) * tl.sum(G[i], 1, keep_dims=True),)
    return undone


@triton.jit
def _row_scales(M0, v, n: tl.constexpr):
    w = ()
    for i in tl.static_range(n):
        w += (1.0 / tl.sum(M0[i] * v, 1, keep_dims=True),)
    return w


@triton.jit
def _sum(rows, n: tl.constexpr):
    total = rows[0]
    for i in tl.static_range(1, n):
        total += rows[i]
    return total


def _outputs(logits, *_):
    return torch.empty_like(logits)


def _forward(logits: Tensor, iterations: int) -> Tensor:
    T, n, _ = logits.shape
    h_res = _outputs(logits)
    block_t = _block(T)
    _sinkhorn[(triton.cdiv(T, block_t),)](
        logits, h_res, T, iterations, n, block_t, num_warps=block_t // 32, enable_fp_fusion=True
    )
    return h_res


def _backward(needs, dh_res, logits, iterations):
    if not needs[0]:
        return (None,)
    T, n, _ = logits.shape
    dlogits = torch.empty_like(logits)
    every = triton.cdiv(iterations, KEPT)
    block_t = _block(T)
    # Eight columns are two vectors of four, and a thread that held both would run out of registers.
    warps = block_t // 32 * max(1, n // 4)
    _sinkhorn_backward[(triton.cdiv(T, block_t),)](
        dh_res, logits, dlogits, T, iterations, every, n, block_t, num_warps=warps, enable_fp_fusion=True
    )
    return (dlogits,)


_operator = Operator(_forward, _backward, _outputs)


def _block(T):
    """Tokens of a block. A token is a long chain of dependent steps: small blocks spread few over many processors."""
    return 32 if T <= 16384 else 128


def sinkhorn(logits, *, iterations=20):
    """Doubly stochastic matrix of exp(logits): columns are normalised first, rows last, without an epsilon.

    logits      [T, n, n] fp32   [out, in], n in 1, 2, 4, 8
    iterations  at least 1
    gives       [T, n, n] fp32   its rows sum to 1 to rounding, its columns nearly

    Fails: ValueError for any other shape or dtype, or less than one iteration.
    """
    if logits.dim() != 3 or logits.shape[1] not in (1, 2, 4, 8) or logits.shape[1] != logits.shape[2]:
        raise ValueError(f"logits: expected [T, n, n] with n in 1, 2, 4, 8; got {list(logits.shape)}")
    if logits.dtype != torch.float32:
        raise ValueError(f"logits: expected torch.float32; got {logits.dtype}")
    if iterations < 1:
        raise ValueError(f"iterations: expected at least 1; got {iterations}")
    return _operator(logits, iterations)
