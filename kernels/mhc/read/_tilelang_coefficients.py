"""The backward of a read's coefficients: from their gradients and u's to those of m, r, a and b."""

import math

import tilelang.language as T

from perflab.measure.tile_kernel import alloc_shared, tile_kernel

#: Tokens of a block in the kernels that give each token's matrix to one thread.
LANES = 32
#: Shared memory that a block may have on Hopper, for the divisors of backward's normalisations.
SHARED_BYTES = 200 * 1024
#: Threads that walk a token's columns.
WALKERS = 128
#: Chunks of a long sum, which are added side by side.
CHUNKS = 32


def first_steps(n):
    """The macro of Sinkhorn's first two normalisations: M <- exp(M) with columns, then rows of sum 1.

    The columns' are taken by logarithms. Rows cancel a factor of their own, so its maximum may leave before exp: no row
    can vanish whole. rows[i] is what row i was divided by.
    """

    @T.macro
    def first_steps(M, rows, total):
        for j in T.unroll(n):
            rows[0] = M[0, j]
            for i in T.unroll(1, n):
                rows[0] = T.max(rows[0], M[i, j])
            total[0] = 0
            for i in T.unroll(n):
                M[i, j] -= rows[0]
                total[0] += T.exp(M[i, j])
            total[0] = T.log(total[0])
            for i in T.unroll(n):
                M[i, j] -= total[0]
        for i in T.unroll(n):
            rows[i] = M[i, 0]
            for j in T.unroll(1, n):
                rows[i] = T.max(rows[i], M[i, j])
            total[0] = 0
            for j in T.unroll(n):
                M[i, j] = T.exp(M[i, j] - rows[i])
                total[0] += M[i, j]
            rows[i] = total[0] * T.exp(rows[i])
            total[0] = 1 / total[0]
            for j in T.unroll(n):
                M[i, j] *= total[0]

    return first_steps


# Left to itself, TileLang loads fewer than 16 bytes at a time under a condition.
@tile_kernel(enable_lower_ldgstg=True, enable_lower_ldgstg_predicated=True)
def inner_products(n, C, dtype):
    """dh_pre[t, i] = sum_c du[t, c] x[t, i, c], by a block per token that walks C."""
    tokens = T.dynamic("tokens", "int64")
    # 16 bytes, or the widest vector that does not reach over a row's end.
    vector = math.gcd(C, 4 if dtype == "float32" else 8)

    @T.prim_func
    def inner_products(
        x: T.Tensor((tokens, n, C), dtype),
        du: T.Tensor((tokens, C), dtype),
        dh_pre: T.Tensor((tokens, n), "float32"),
    ):
        with T.Kernel(tokens, threads=WALKERS) as t:
            of_thread = alloc_shared((n, WALKERS), "float32")
            of_chunk = alloc_shared((n, CHUNKS), "float32")
            streams = T.alloc_local((n, vector), dtype)
            cotangent = T.alloc_local((vector,), dtype)
            dh = T.alloc_local((n,), "float32")
            total = T.alloc_local((1,), "float32")
            for thread in T.Parallel(WALKERS):
                for i in T.unroll(n):
                    dh[i] = 0
                for step in T.serial(T.ceildiv(C, WALKERS * vector)):
                    first = (step * WALKERS + thread) * vector
                    if first < C:
                        for c in T.vectorized(vector):
                            cotangent[c] = du[t, first + c]
                        for i in T.unroll(n):
                            for c in T.vectorized(vector):
                                streams[i, c] = x[t, i, first + c]
                        for i in T.unroll(n):
                            for c in T.unroll(vector):
                                dh[i] += T.cast(cotangent[c], "float32") * T.cast(streams[i, c], "float32")
                for i in T.unroll(n):
                    of_thread[i, thread] = dh[i]
            # The threads' sums are added in chunks, and the chunks, in order.
            for i, chunk in T.Parallel(n, CHUNKS):
                total[0] = 0
                for thread in T.serial(WALKERS // CHUNKS):
                    total[0] += of_thread[i, thread * CHUNKS + chunk]
                of_chunk[i, chunk] = total[0]
            for i in T.Parallel(n):
                total[0] = 0
                for chunk in T.serial(CHUNKS):
                    total[0] += of_chunk[i, chunk]
                dh_pre[t, i] = total[0]

    return inner_products


@tile_kernel()
def undo(n, iterations):
    """From the coefficients' gradients those of m and r, and each block's part of those of a and b.

    Every normalisation M' = M / s, s along an axis, gives with G = M dL/dM, the gradient of log M:
    G = G' - M' sum(G') along the axis. M' is had again as M'' s'' from the normalisation after it, whose divisors s''
    are kept from a first pass.
    """
    tokens = T.dynamic("tokens", "int64")
    blocks = T.dynamic("blocks", "int64")
    K = n * n + 2 * n
    sums = math.ceil((K + 3) / LANES) * LANES
    start = first_steps(n)

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
        parts: T.Tensor((blocks, K + 3), "float32"),
    ):
        with T.Kernel(T.ceildiv(tokens, LANES), threads=LANES) as block:
            divisors = alloc_shared((iterations, 2 * n, LANES), "float32")
            dh = alloc_shared((LANES, K + 3), "float32")
            M = T.alloc_local((n, n), "float32")
            G = T.alloc_local((n, n), "float32")
            rows = T.alloc_local((n,), "float32")
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
                    start(M, rows, total)
                    for i in T.unroll(n):
                        divisors[0, n + i, lane] = rows[i]
                    for step in T.serial(1, iterations):
                        for j in T.unroll(n):
                            total[0] = 0
                            for i in T.unroll(n):
                                total[0] += M[i, j]
                            divisors[step, j, lane] = total[0]
                            total[0] = 1 / total[0]
                            for i in T.unroll(n):
                                M[i, j] *= total[0]
                        for i in T.unroll(n):
                            total[0] = 0
                            for j in T.unroll(n):
                                total[0] += M[i, j]
                            divisors[step, n + i, lane] = total[0]
                            total[0] = 1 / total[0]
                            for j in T.unroll(n):
                                M[i, j] *= total[0]
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            G[i, j] = dh_res[t, i, j]
                    for i in T.unroll(n):
                        for j in T.unroll(n):
                            G[i, j] *= M[i, j]
                    for back in T.serial(iterations):
                        # Rows: G[i, j] <- G[i, j] - M[i, j] sum_j G[i, j], and M as it was before they were divided
                        for i in T.unroll(n):
                            total[0] = 0
                            for j in T.unroll(n):
                                total[0] += G[i, j]
                            for j in T.unroll(n):
                                G[i, j] -= M[i, j] * total[0]
                                M[i, j] *= divisors[iterations - 1 - back, n + i, lane]
                        # Columns: G[i, j] <- G[i, j] - M[i, j] sum_i G[i, j], and M as it was before
                        for j in T.unroll(n):
                            total[0] = 0
                            for i in T.unroll(n):
                                total[0] += G[i, j]
                            for i in T.unroll(n):
                                G[i, j] -= M[i, j] * total[0]
                            if back < iterations - 1:
                                for i in T.unroll(n):
                                    M[i, j] *= divisors[iterations - 1 - back, j, lane]
                    # sigmoid' = sigmoid (1 - sigmoid); the logits' gradient is G
                    for i in T.unroll(n):
                        total[0] = 1 / (1 + T.exp(-(a[0] * m[t, i] * inverse[0] + b[i])))
                        dh[lane, i] = dh_pre[t, i] * total[0] * (1 - total[0])
                        total[0] = 1 / (1 + T.exp(-(a[1] * m[t, n + i] * inverse[0] + b[n + i])))
                        dh[lane, n + i] = 2 * dh_post[t, i] * total[0] * (1 - total[0])
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
            # parts[block, k] = sum_t dh[t, k], parts[block, K + g] = sum_t da[t, g]
            for k in T.Parallel(sums):
                if k < K + 3:
                    total[0] = 0
                    for lane in T.serial(LANES):
                        total[0] += dh[lane, k]
                    parts[block, k] = total[0]

    return undo


@tile_kernel()
def add_blocks(K):
    """db[k] = sum_s parts[s, k] and da[g] = sum_s parts[s, K + g]: by chunks of blocks, then the chunks."""
    blocks = T.dynamic("blocks", "int64")
    sums = math.ceil((K + 3) / 32) * 32

    @T.prim_func
    def add_blocks(
        parts: T.Tensor((blocks, K + 3), "float32"), da: T.Tensor((3,), "float32"), db: T.Tensor((K,), "float32")
    ):
        with T.Kernel(1, threads=256):
            of_chunk = alloc_shared((CHUNKS, sums), "float32")
            total = T.alloc_local((1,), "float32")
            length = T.ceildiv(blocks, CHUNKS)
            for chunk, k in T.Parallel(CHUNKS, sums):
                if k < K + 3:
                    total[0] = 0
                    for step in T.serial(T.min(length, blocks - chunk * length)):
                        total[0] += parts[chunk * length + step, k]
                    of_chunk[chunk, k] = total[0]
            for k in T.Parallel(sums):
                total[0] = 0
                for chunk in T.serial(CHUNKS):
                    total[0] += of_chunk[chunk, k]
                if k < K:
                    db[k] = total[0]
                elif k < K + 3:
                    da[k - K] = total[0]

    return add_blocks
