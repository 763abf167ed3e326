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
            total = T.alloc_local((1,), "float32")
            largest = T.alloc_local((1,), "float32")
            for lane in T.Parallel(THREADS):
                t = block * THREADS + lane
                if t < tokens:
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            M[i, j] = logits[t, i, j]
                    # Columns of exp(logits), by logarithms: M[i, j] <- logits[i, j] - log sum_i exp(logits[i, j])
                    for j in T.unroll(n):
                        largest[0] = M[0, j]
                        for i in T.unroll(1, n):
                            largest[0] = T.max(largest[0], M[i, j])
                        total[0] = 0
                        for i in T.unroll(n):
                            M[i, j] -= largest[0]
                            total[0] += T.exp(M[i, j])
                        for i in T.unroll(n):
                            M[i, j] -= T.log(total[0])
                    # Rows cancel a factor of their own, so its maximum may leave before exp: no row can vanish whole.
                    for i in T.unroll(n):
                        largest[0] = M[i, 0]
                        for j in T.unroll(1, n):
                            largest[0] = T.max(largest[0], M[i, j])
                        for j in T.unroll(n):
                            M[i, j] = T.exp(M[i, j] - largest[0])
                    for step in T.serial(iterations):
                        # M[i, j] <- M[i, j] / sum_i M[i, j], done above for the first time
                        if step > 0:
                            for j in T.unroll(n):
                                total[0] = 0
                                for i in T.unroll(n):
                                    total[0] += M[i, j]
                                total[0] = 1 / total[0]
                                for i in T.unroll(n):
                                    M[i, j] *= total[0]
                        # M[i, j] <- M[i, j] / sum_j M[i, j]
                        for i in T.unroll(n):
                            total[0] = 0
                            for j in T.unroll(n):
                                total[0] += M[i, j]
                            total[0] = 1 / total[0]
                            for j in T.unroll(n):
                                M[i, j] *= total[0]
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            h_res[t, i, j] = M[i, j]

    return balance


def sinkhorn(logits, *, iterations=20):
    """Balance exp(logits) by Sinkhorn-Knopp: columns first, rows last, no epsilon.

    logits  [T, n, n] fp32
    gives   [T, n, n] fp32   rows sum to 1 to rounding, columns nearly; finite for any finite logits

    Fails: ValueError if n is not 1, 2, 4 or 8, or there is no iteration.
    """
    _, n, _ = sizes(logits, "logits", "T n n", n=(1, 2, 4, 8))
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, but is {iterations}")
    h_res = torch.empty_like(logits)
    balance(n, iterations)(logits, h_res)
    return h_res
