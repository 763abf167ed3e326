"""One block of n x n matrices, a row or part of one per thread: more threads per token, and sums that cross lanes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.measure.operators import Operator

from .triton_registers import KEPT, choose

REQUIRES = ("torch", "triton")


@triton.jit(do_not_specialize=["T"])
def _sinkhorn(logits, h_res, T, iterations: tl.constexpr, n: tl.constexpr, BLOCK_T: tl.constexpr):
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.arange(0, n)
    at = (t * n * n)[:, None, None] + (i * n)[None, :, None] + i[None, None, :]
    mask = (t < T)[:, None, None]

    # M0[i, j] = exp(logits[i, j] - max_i logits[i, j]): the first column step cancels any factor of a column.
    M = tl.load(logits + at, mask=mask, other=0.0)
    M = tl.exp(M - tl.max(M, 1, keep_dims=True))
    for _ in range(iterations):
        # M[i, j] <- M[i, j] / sum_i M[i, j]
        M *= 1.0 / tl.sum(M, 1, keep_dims=True)
        # M[i, j] <- M[i, j] / sum_j M[i, j]
        M *= 1.0 / tl.sum(M, 2, keep_dims=True)
    tl.store(h_res + at, M, mask=mask)


@triton.jit(do_not_specialize=["T"])
def _sinkhorn_backward(
    dh_res, logits, dlogits, T, iterations: tl.constexpr, EVERY: tl.constexpr, n: tl.constexpr, BLOCK_T: tl.constexpr
):
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.arange(0, n)
    at = (t * n * n)[:, None, None] + (i * n)[None, :, None] + i[None, None, :]
    mask = (t < T)[:, None, None]
    M0 = tl.load(logits + at, mask=mask, other=0.0)
    dM = tl.load(dh_res + at, mask=mask, other=0.0)
    M0 = tl.exp(M0 - tl.max(M0, 1, keep_dims=True))

    # Every step only scales rows or columns. With the column scales v_k of iteration k, the matrix behind its column
    # step is w_(k-1) M0 v_k and behind its row step w_k M0 v_k, with row scales w_k = 1 / sum_j M0 v_k, and w_0 = 1.
    # So an iteration is told by its v, n numbers. They are kept at k = 1, 1 + EVERY, ...
    v = 1.0 / tl.sum(M0, 1, keep_dims=True)
    kept = (v,)
    for _ in tl.static_range(EVERY, iterations, EVERY):
        v = _later(M0, v, EVERY)
        kept += (v,)

    # In terms of G = dM M, the gradient of log M, a step M' = M / sum(M) has G = G' - M' sum(G').
    v = _later(M0, v, (iterations - 1) % EVERY)
    w = 1.0 / tl.sum(M0 * v, 2, keep_dims=True)
    G = dM * (w * (M0 * v))
    for undone in range(iterations - 1):
        k = iterations - 2 - undone
        before = _later(M0, choose(kept, k // EVERY, (iterations + EVERY - 1) // EVERY), k % EVERY)
        G -= w * (M0 * v) * tl.sum(G, 2, keep_dims=True)
        w = 1.0 / tl.sum(M0 * before, 2, keep_dims=True)
        G -= w * (M0 * v) * tl.sum(G, 1, keep_dims=True)
        v = before
    G -= w * (M0 * v) * tl.sum(G, 2, keep_dims=True)
    G -= M0 * v * tl.sum(G, 1, keep_dims=True)
    # The gradient of log M0 is that of the logits: the maximum of a column takes no part, as the sum of G is 0 there.
    tl.store(dlogits + at, G, mask=mask)


@triton.jit
def _later(M0, v, iterations):
    # v_(k+1)[j] = v_k[j] / sum_i M[i, j], where M[i, j] = M0[i, j] v_k[j] / sum_j M0[i, j] v_k[j]
    for _ in range(iterations):
        M = M0 * v
        M *= 1.0 / tl.sum(M, 2, keep_dims=True)
        v *= 1.0 / tl.sum(M, 1, keep_dims=True)
    return v


def _outputs(logits, *_):
    return torch.empty_like(logits)


def _forward(logits: Tensor, iterations: int) -> Tensor:
    T, n, _ = logits.shape
    h_res = _outputs(logits)
    block_t = _block(n)
    _sinkhorn[(triton.cdiv(T, block_t),)](logits, h_res, T, iterations, n, block_t, num_warps=4, enable_fp_fusion=True)
    return h_res


def _backward(needs, dh_res, logits, iterations):
    if not needs[0]:
        return (None,)
    T, n, _ = logits.shape
    dlogits = torch.empty_like(logits)
    every = triton.cdiv(iterations, KEPT)
    block_t = _block(n)
    _sinkhorn_backward[(triton.cdiv(T, block_t),)](
        dh_res, logits, dlogits, T, iterations, every, n, block_t, num_warps=4, enable_fp_fusion=True
    )
    return (dlogits,)


_operator = Operator(_forward, _backward, _outputs)


def _block(n):
    """Tokens of a block: one vector of four elements per thread, 32 tokens at n = 4."""
    return 512 // (n * n)


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
