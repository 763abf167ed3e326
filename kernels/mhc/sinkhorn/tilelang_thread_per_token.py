"""One thread per token keeps its n x n matrix in registers through all iterations, in backward its gradient too."""

import tilelang.language as T
import torch
from torch import Tensor

from perflab import Unsupported
from perflab.measure.operators import Operator
from perflab.measure.tile_kernel import alloc_shared, tile_kernel

from ._tilelang_steps import steps

REQUIRES = ("torch", "tilelang")

THREADS = 64
#: Backward keeps every step's sums in shared memory: small blocks fill it best, and this is what one may take.
BACKWARD_THREADS = 32
SHARED_BYTES = 227 * 1024


@tile_kernel()
def balance(n, iterations):
    """M0 = exp(logits); then `iterations` times: columns to sum 1, rows to sum 1."""
    tokens = T.dynamic("tokens", "int64")
    first, columns, rows, _, _ = steps(n)

    @T.prim_func
    def balance(logits: T.Tensor((tokens, n, n), "float32"), h_res: T.Tensor((tokens, n, n), "float32")):
        with T.Kernel(T.ceildiv(tokens, THREADS), threads=THREADS) as block:
            M = T.alloc_local((n, n), "float32")
            sums = T.alloc_local((n,), "float32")
            total = T.alloc_local((1,), "float32")
            for lane in T.Parallel(THREADS):
                t = block * THREADS + lane
                if t < tokens:
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            M[i, j] = logits[t, i, j]
                    first(M, sums, total)
                    for _ in T.serial(iterations - 1):
                        columns(M, sums, total)
                        rows(M, sums, total)
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            h_res[t, i, j] = M[i, j]

    return balance


@tile_kernel()
def balance_backward(n, iterations):
    """Gradient of the logits, exactly: the steps forward again, then back by the sums that they divided by."""
    tokens = T.dynamic("tokens", "int64")
    first, columns, rows, undo_columns, undo_rows = steps(n)

    @T.prim_func
    def balance_backward(
        dh_res: T.Tensor((tokens, n, n), "float32"),
        logits: T.Tensor((tokens, n, n), "float32"),
        dlogits: T.Tensor((tokens, n, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(tokens, BACKWARD_THREADS), threads=BACKWARD_THREADS) as block:
            column_sums = alloc_shared((iterations, n, BACKWARD_THREADS), "float32")
            row_sums = alloc_shared((iterations, n, BACKWARD_THREADS), "float32")
            M = T.alloc_local((n, n), "float32")
            G = T.alloc_local((n, n), "float32")
            sums = T.alloc_local((n,), "float32")
            total = T.alloc_local((1,), "float32")
            for lane in T.Parallel(BACKWARD_THREADS):
                # Threads beyond the last token repeat it, and store nothing.
                t = T.min(T.cast(block, "int64") * BACKWARD_THREADS + lane, tokens - 1)
                for i in T.unroll(n):
                    for j in T.vectorized(n):
                        M[i, j] = logits[t, i, j]
                first(M, sums, total)
                for i in T.unroll(n):
                    # The first column step, done by logarithms, divides by nothing that is needed again.
                    column_sums[0, i, lane] = 1
                    row_sums[0, i, lane] = sums[i]
                for step in T.serial(1, iterations):
                    columns(M, sums, total)
                    for j in T.unroll(n):
                        column_sums[step, j, lane] = sums[j]
                    rows(M, sums, total)
                    for i in T.unroll(n):
                        row_sums[step, i, lane] = sums[i]
                # G[i, j] = dM[i, j] M[i, j], the gradient of log M
                for i in T.unroll(n):
                    for j in T.vectorized(n):
                        G[i, j] = dh_res[t, i, j]
                for i, j in T.grid(n, n):
                    G[i, j] *= M[i, j]
                for back in T.serial(iterations):
                    for i in T.unroll(n):
                        sums[i] = row_sums[iterations - 1 - back, i, lane]
                    undo_rows(G, M, sums, total)
                    for j in T.unroll(n):
                        sums[j] = column_sums[iterations - 1 - back, j, lane]
                    undo_columns(G, M, sums, total)
                if T.cast(block, "int64") * BACKWARD_THREADS + lane < tokens:
                    for i in T.unroll(n):
                        for j in T.vectorized(n):
                            dlogits[t, i, j] = G[i, j]

    return balance_backward


def _outputs(logits, iterations):
    del iterations
    return torch.empty_like(logits)


def _forward(logits: Tensor, iterations: int) -> Tensor:
    h_res = torch.empty_like(logits)
    balance(logits.shape[1], iterations)(logits, h_res)
    return h_res


def _backward(needs, dh_res, logits, iterations):
    del needs  # Only the logits' gradient can be wanted.
    n = logits.shape[1]
    if 4 * 2 * iterations * n * BACKWARD_THREADS > SHARED_BYTES:
        raise Unsupported(f"the sums of {iterations} iterations at n = {n} do not fit shared memory")
    dlogits = torch.empty_like(logits)
    balance_backward(n, iterations)(dh_res, logits, dlogits)
    return (dlogits,)


_operator = Operator(_forward, _backward, _outputs)


def sinkhorn(logits, *, iterations=20):
    """Balance exp(logits) by Sinkhorn-Knopp: columns first, rows last, no epsilon; backward is exact.

    logits  [T, n, n] fp32   n in 1, 2, 4, 8
    gives   [T, n, n] fp32   rows sum to 1 to rounding, columns nearly; finite for any finite logits

    Fails: ValueError for any other shape or dtype, or less than one iteration; in backward Unsupported for iterations
    whose sums do not fit shared memory, hundreds of them.
    """
    if logits.dim() != 3 or logits.shape[1] not in (1, 2, 4, 8) or logits.shape[1] != logits.shape[2]:
        raise ValueError(f"logits: expected [T, n, n] with n in 1, 2, 4, 8; got {list(logits.shape)}")
    if logits.dtype != torch.float32:
        raise ValueError(f"logits: expected torch.float32; got {logits.dtype}")
    if iterations < 1:
        raise ValueError(f"iterations: expected at least 1; got {iterations}")
    return _operator(logits, iterations)
