"""One thread holds a token's whole matrix (two threads at n = 8), so that every step stays in registers."""

import torch
import triton
import triton.language as tl

REQUIRES = ("torch", "triton")


@triton.jit(do_not_specialize=["T"])
def _sinkhorn(logits, h_res, T, iterations: tl.constexpr, n: tl.constexpr, BLOCK_T: tl.constexpr):
    t = tl.program_id(0).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    rows = (t * n * n)[:, None] + tl.arange(0, n)[None, :]
    mask = (t < T)[:, None]

    # A tuple of n rows [BLOCK_T, n], rather than one block [BLOCK_T, n, n]: a sum over rows is then plain addition.
    M = ()
    for i in tl.static_range(n):
        M += (tl.load(logits + rows + i * n, mask=mask, other=0.0),)

    # M0[i, j] = exp(logits[i, j] - max_i logits[i, j]): the first column step cancels any factor of a column.
    top = M[0]
    for i in tl.static_range(1, n):
        top = tl.maximum(top, M[i], propagate_nan=tl.PropagateNan.ALL)
    M0 = ()
    for i in tl.static_range(n):
        M0 += (tl.exp(M[i] - top),)
    M = M0

    for _ in range(iterations):
        # M[i, j] <- M[i, j] / sum_i M[i, j]
        total = M[0]
        for i in tl.static_range(1, n):
            total += M[i]
        scale = 1.0 / total
        # M[i, j] <- M[i, j] / sum_j M[i, j]
        step = ()
        for i in tl.static_range(n):
            row = M[i] * scale
            step += (row * (1.0 / tl.sum(row, 1, keep_dims=True)),)
        M = step

    for i in tl.static_range(n):
        tl.store(h_res + rows + i * n, M[i], mask=mask)


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
    # A token is a long chain of dependent steps: small blocks spread few tokens over many multiprocessors.
    block_t = 32 if T <= 16384 else 128
    with torch.cuda.device_of(logits):
        _sinkhorn[(triton.cdiv(T, block_t),)](
            logits, h_res, T, iterations, n, block_t, num_warps=block_t // 32, enable_fp_fusion=True
        )
    return h_res
