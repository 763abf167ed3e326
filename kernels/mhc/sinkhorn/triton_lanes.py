"""One block of n x n matrices, a row or part of one per thread: more threads per token, and sums that cross lanes."""

import torch
import triton
import triton.language as tl

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
    logits = logits.contiguous()
    T, n, _ = logits.shape
    h_res = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    # One vector of four elements per thread: 32 tokens at n = 4.
    block_t = 512 // (n * n)
    with torch.cuda.device_of(logits):
        _sinkhorn[(triton.cdiv(T, block_t),)](
            logits, h_res, T, iterations, n, block_t, num_warps=4, enable_fp_fusion=True
        )
    return h_res
