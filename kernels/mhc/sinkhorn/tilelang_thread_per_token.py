"""One thread per token keeps its n x n matrix in registers through all iterations."""

import tilelang.language as T
import torch

from perflab.measure.tile_kernel import sizes, tile_kernel

REQUIRES = ("torch", "tilelang")

THREADS = 64


@tile_kernel()
def balance(n, iterations):
    """M0 = exp(logits); then `iterations` times: columns to sum 1, rows to sum 1."""
    tokens = T.dynamic("tokens", "int64")

    @T.prim_func
    def balance(logits: T.Tensor((tokens, n, n), "float32"), h_res: T.Tensor((tokens, n, n), "float32")):
        with T.Kernel(T.ceildiv(tokens, THREADS), threads=THREADS) as block:
            M = T.alloc_local((n, n), "float32")
            factor = T.alloc_local((n,), "float32")
            for lane in T.Parallel(THREADS):
                t = block * THREADS + lane
                if t < tokens:
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            M[i, j] = logits[t, i, j]
                    # M0[i, j] = exp(logits[i, j] - max_i logits[i, j]): a column's own factor is cancelled by the
                    # first column step, so its own maximum may be taken out; a row's may not.
                    for j in T.unroll(n):
                        factor[j] = M[0, j]
                        for i in T.unroll(1, n):
                            factor[j] = T.max(factor[j], M[i, j])
                        for i in T.unroll(n):
                            M[i, j] = T.exp(M[i, j] - factor[j])
                    for _ in T.serial(iterations):
                        # M[i, j] <- M[i, j] / sum_i M[i, j]
                        for j in T.unroll(n):
                            factor[j] = 0
                            for i in T.unroll(n):
                                factor[j] += M[i, j]
                            factor[j] = 1 / factor[j]
                            for i in T.unroll(n):
                                M[i, j] *= factor[j]
                        # M[i, j] <- M[i, j] / sum_j M[i, j]
                        for i in T.unroll(n):
                            factor[i] = 0
                            for j in T.unroll(n):
                                factor[i] += M[i, j]
                            factor[i] = 1 / factor[i]
                            for j in T.unroll(n):
                                M[i, j] *= factor[i]
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            h_res[t, i, j] = M[i, j]

    return balance


def sinkhorn(logits, *, iterations=20):
    """Balance exp(logits) by Sinkhorn-Knopp: columns first, rows last, no epsilon.

    logits  [T, n, n] fp32
    gives   [T, n, n] fp32   rows sum to 1 to rounding, columns nearly

    Fails: ValueError if n is not 1, 2, 4 or 8, or iterations is negative.
    """
    _, n, _ = sizes(logits, "logits", "T n n", n=(1, 2, 4, 8))
    if iterations < 0:
        raise ValueError(f"iterations must not be negative, but is {iterations}")
    h_res = torch.empty_like(logits)
    balance(n, iterations)(logits, h_res)
    return h_res
