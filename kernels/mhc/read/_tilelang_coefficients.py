"""The backward of a read's coefficients: from their gradients and u's to those of m, r, a and b."""

import math

import tilelang.language as T

from perflab.measure.tile_kernel import alloc_shared, tile_kernel

from ..sinkhorn._tilelang_steps import steps

#: Tokens of a block in the kernels that give each token's matrix to one thread.
LANES = 32
#: Shared memory that a block may have on Hopper, for the divisors of backward's normalisations.
SHARED_BYTES = 200 * 1024


@tile_kernel()
def undo(n, iterations):
    """From the coefficients' gradients those of m and r, and each block's part of those of a and b.

    Sinkhorn's steps run again, and then back by what they divided by, which is kept in shared memory.
    """
    tokens = T.dynamic("tokens", "int64")
    blocks = T.dynamic("blocks", "int64")
    K = n * n + 2 * n
    width = math.ceil((K + 3) / LANES) * LANES
    first, columns, rows, undo_columns, undo_rows = steps(n)

    @T.prim_func
    def undo(
        m: T.Tensor((tokens, K), "float32"),
        r: T.Tensor((tokens,), "float32"),
        a: T.Tensor((3,), "float32"),
        b: T.Tensor((K,), "float32"),
        dh_pre: T.Tensor((tokens, n), "float32"),
        dh_post: T.Tensor((tokens, n), "float32"),
        dh_res: T.Tensor((tokens, n, n), "float32"),
        dm: T.Tensor((tokens, K), "float32"),
        dr: T.Tensor((tokens,), "float32"),
        parts: T.Tensor((K + 3, blocks), "float32"),
    ):
        with T.Kernel(T.ceildiv(tokens, LANES), threads=LANES) as block:
            divisors = alloc_shared((iterations, 2 * n, LANES), "float32")
            dh = alloc_shared((LANES, K + 3), "float32")
            M = T.alloc_local((n, n), "float32")
            G = T.alloc_local((n, n), "float32")
            sums = T.alloc_local((n,), "float32")
            total = T.alloc_local((1,), "float32")
            inverse = T.alloc_local((1,), "float32")
            da = T.alloc_local((3,), "float32")
            for lane in T.Parallel(LANES):
                t = block * LANES + lane
                for k in T.serial(K + 3):
                    dh[lane, k] = 0
                if t < tokens:
                    inverse[0] = 1 / r[t]
                    for i in T.unroll(n):
                        for j in T.unroll(n):
                            M[i, j] = a[2] * m[t, 2 * n + i * n + j] * inverse[0] + b[2 * n + i * n + j]
                    first(M, sums, total)
                    for i in T.unroll(n):
                        # The first column step, done by logarithms, divides by nothing that is needed again.
                        divisors[0, i, lane] = 1
                        divisors[0, n + i, lane] = sums[i]
                    for step in T.serial(1, iterations):
                        columns(M, sums, total)
                        for j in T.unroll(n):
                            divisors[step, j, lane] = sums[j]
                        rows(M, sums, total)
                        for i in T.unroll(n):
                            divisors[step, n + i, lane] = sums[i]
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            G[i, j] = dh_res[t, i, j]
                    for i in T.unroll(n):
                        for j in T.unroll(n):
                            G[i, j] *= M[i, j]
                    for back in T.serial(iterations):
                        for i in T.unroll(n):
                            sums[i] = divisors[iterations - 1 - back, n + i, lane]
                        undo_rows(G, M, sums, total)
                        for j in T.unroll(n):
                            sums[j] = divisors[iterations - 1 - back, j, lane]
                        undo_columns(G, M, sums, total)
                    # sigmoid'(h) = e / (1 + e)^2 with e = exp(-|h|), which cancels nothing; the logits' gradient is G
                    for i in T.unroll(n):
                        h = a[0] * m[t, i] * inverse[0] + b[i]
                        e = T.exp(-T.max(h, -h))
                        dh[lane, i] = dh_pre[t, i] * e / ((1 + e) * (1 + e))
                    for i in T.unroll(n):
                        h = a[1] * m[t, n + i] * inverse[0] + b[n + i]
                        e = T.exp(-T.max(h, -h))
                        dh[lane, n + i] = 2 * dh_post[t, i] * e / ((1 + e) * (1 + e))
                    for i in T.unroll(n):
                        for j in T.unroll(n):
                            dh[lane, 2 * n + i * n + j] = G[i, j]
                    # da[g] = sum_k dh[k] m[k] / r over the gate's k; dm[k] = a[g] dh[k] / r; dr = -sum_g a[g] da[g] / r
                    for g in T.unroll(3):
                        da[g] = 0
                    for k in T.serial(K):
                        gate = T.if_then_else(k < n, 0, T.if_then_else(k < 2 * n, 1, 2))
                        total[0] = dh[lane, k] * inverse[0]
                        dm[t, k] = a[gate] * total[0]
                        for g in T.unroll(3):
                            da[g] += T.if_then_else(g == gate, total[0] * m[t, k], 0)
                    for g in T.unroll(3):
                        dh[lane, K + g] = da[g]
                    dr[t] = -(a[0] * da[0] + a[1] * da[1] + a[2] * da[2]) * inverse[0]
            # parts[k, block] = sum_t dh[t, k], parts[K + g, block] = sum_t da[t, g]
            for k in T.Parallel(width):
                if k < K + 3:
                    total[0] = 0
                    for lane in T.serial(LANES):
                        total[0] += dh[lane, k]
                    parts[k, block] = total[0]

    return undo
