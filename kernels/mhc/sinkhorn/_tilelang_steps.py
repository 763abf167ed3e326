"""Sinkhorn's steps on a matrix that one thread holds, and their derivatives: macros of which kernels are made."""

import tilelang.language as T


def steps(n):
    """Macros (first, columns, rows, undo_columns, undo_rows) for n x n matrices.

    first         M <- exp(M) with columns, then rows of sum 1
    columns       M[i, j] <- M[i, j] / sum_i M[i, j]
    rows          M[i, j] <- M[i, j] / sum_j M[i, j]
    undo_columns  the gradient G of log M, and M itself, as they were before a column step that divided by sums
    undo_rows     the same of a row step

    sums[k] is what column or row k was divided by; `first` tells its rows'. G is the gradient of log M: through
    M' = M / s it is G = G' - M' sum(G'), which divides by nothing.
    """

    @T.macro
    def first(M, sums, total):
        # Columns by logarithms: M[i, j] <- logits[i, j] - log sum_i exp(logits[i, j])
        for j in T.unroll(n):
            sums[0] = M[0, j]
            for i in T.unroll(1, n):
                sums[0] = T.max(sums[0], M[i, j])
            total[0] = 0
            for i in T.unroll(n):
                M[i, j] -= sums[0]
                total[0] += T.exp(M[i, j])
            total[0] = T.log(total[0])
            for i in T.unroll(n):
                M[i, j] -= total[0]
        # Rows cancel a factor of their own, so its maximum may leave before exp: no row can vanish whole. Its sum may,
        # beside those of the other rows.
        for i in T.unroll(n):
            sums[i] = M[i, 0]
            for j in T.unroll(1, n):
                sums[i] = T.max(sums[i], M[i, j])
            total[0] = 0
            for j in T.unroll(n):
                M[i, j] = T.exp(M[i, j] - sums[i])
                total[0] += M[i, j]
            sums[i] = total[0] * T.exp(sums[i])
            total[0] = 1 / total[0]
            for j in T.unroll(n):
                M[i, j] *= total[0]

    @T.macro
    def columns(M, sums, total):
        for j in T.unroll(n):
            sums[j] = 0
            for i in T.unroll(n):
                sums[j] += M[i, j]
            total[0] = 1 / sums[j]
            for i in T.unroll(n):
                M[i, j] *= total[0]

    @T.macro
    def rows(M, sums, total):
        for i in T.unroll(n):
            sums[i] = 0
            for j in T.unroll(n):
                sums[i] += M[i, j]
            total[0] = 1 / sums[i]
            for j in T.unroll(n):
                M[i, j] *= total[0]

    @T.macro
    def undo_columns(G, M, sums, total):
        for j in T.unroll(n):
            total[0] = 0
            for i in T.unroll(n):
                total[0] += G[i, j]
            for i in T.unroll(n):
                G[i, j] -= M[i, j] * total[0]
                M[i, j] *= sums[j]

    @T.macro
    def undo_rows(G, M, sums, total):
        for i in T.unroll(n):
            total[0] = 0
            for j in T.unroll(n):
                total[0] += G[i, j]
            for j in T.unroll(n):
                G[i, j] -= M[i, j] * total[0]
                M[i, j] *= sums[i]

    return first, columns, rows, undo_columns, undo_rows
