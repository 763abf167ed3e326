"""One pass over blocks of tokens; each thread turns a vector of a token's projections into coefficients."""

import math

import tilelang.language as T
import torch
from torch import Tensor

from perflab.measure.operators import Operator
from perflab.measure.tile_kernel import alloc_shared, tile_kernel

REQUIRES = ("torch", "tilelang")

TOKENS = 64
THREADS = 64
#: n by the number of coefficients, n*n + 2*n.
N_OF_K = {3: 1, 8: 2, 24: 4, 80: 8}
#: Threads that add the blocks' sums of one column, and parts in which they are summed in turn.
ADDERS = 128
PARTS = 8


@tile_kernel()
def coefficients(n):
    """h = (1/r) [a_pre m_pre, a_post m_post, a_res m_res] + b, then sigmoid, 2 sigmoid, nothing."""
    tokens = T.dynamic("tokens", "int64")
    K = n * n + 2 * n

    @T.prim_func
    def coefficients(
        m: T.Tensor((tokens, K), "float32"),
        r: T.Tensor((tokens,), "float32"),
        a: T.Tensor((3,), "float32"),
        b: T.Tensor((K,), "float32"),
        h_pre: T.Tensor((tokens, n), "float32"),
        h_post: T.Tensor((tokens, n), "float32"),
        logits: T.Tensor((tokens, n * n), "float32"),
    ):
        with T.Kernel(T.ceildiv(tokens, TOKENS), threads=THREADS) as block:
            first = block * TOKENS
            # h_pre[t, i] = sigmoid(a[0] m[t, i] / r[t] + b[i])
            for t, i in T.Parallel(TOKENS, n):
                if first + t < tokens:
                    h = a[0] * m[first + t, i] / r[first + t] + b[i]
                    h_pre[first + t, i] = 1 / (1 + T.exp(-h))
            # h_post[t, i] = 2 sigmoid(a[1] m[t, n + i] / r[t] + b[n + i])
            for t, i in T.Parallel(TOKENS, n):
                if first + t < tokens:
                    h = a[1] * m[first + t, n + i] / r[first + t] + b[n + i]
                    h_post[first + t, i] = 2 / (1 + T.exp(-h))
            # logits[t, k] = a[2] m[t, 2 n + k] / r[t] + b[2 n + k]
            for t, k in T.Parallel(TOKENS, n * n):
                if first + t < tokens:
                    logits[first + t, k] = a[2] * m[first + t, 2 * n + k] / r[first + t] + b[2 * n + k]

    return coefficients


@tile_kernel()
def coefficients_backward(n, wanted):
    """dm and dr of a block's tokens, and the block's sums for db and da, from sigmoids computed again."""
    tokens = T.dynamic("tokens", "int64")
    blocks = T.dynamic("blocks", "int64")
    K = n * n + 2 * n
    dm_wanted, dr_wanted, sums_wanted = wanted

    @T.prim_func
    def coefficients_backward(
        dh_pre: T.Tensor((tokens, n), "float32"),
        dh_post: T.Tensor((tokens, n), "float32"),
        dlogits: T.Tensor((tokens, n * n), "float32"),
        m: T.Tensor((tokens, K), "float32"),
        r: T.Tensor((tokens,), "float32"),
        a: T.Tensor((3,), "float32"),
        b: T.Tensor((K,), "float32"),
        dm: T.Tensor((tokens, K), "float32"),
        dr: T.Tensor((tokens,), "float32"),
        sums: T.Tensor((K + 3, blocks), "float32"),
    ):
        with T.Kernel(T.ceildiv(tokens, TOKENS), threads=THREADS) as block:
            # g is the gradient of h, and gm = g m / r, whose last row takes its sums; rows of whole 16 bytes.
            g = alloc_shared((TOKENS, math.ceil(K / 4) * 4 + 4), "float32")
            gm = alloc_shared((TOKENS + 1, math.ceil(K / 4) * 4 + 4), "float32")
            total = T.alloc_local((1,), "float32")
            first = block * TOKENS
            live = T.min(TOKENS, tokens - first)
            # h_pre = sigmoid(h): g[t, i] = dh_pre[t, i] e / (1 + e)^2 with e = exp(-|h|), which cancels nothing
            for t, i in T.Parallel(TOKENS, n):
                if first + t < tokens:
                    ratio = m[first + t, i] / r[first + t]
                    h = a[0] * ratio + b[i]
                    e = T.exp(-T.max(h, -h))
                    g[t, i] = dh_pre[first + t, i] * e / ((1 + e) * (1 + e))
                    gm[t, i] = g[t, i] * ratio
                    if dm_wanted:
                        dm[first + t, i] = g[t, i] * a[0] / r[first + t]
            # h_post = 2 sigmoid(h)
            for t, i in T.Parallel(TOKENS, n):
                if first + t < tokens:
                    ratio = m[first + t, n + i] / r[first + t]
                    h = a[1] * ratio + b[n + i]
                    e = T.exp(-T.max(h, -h))
                    g[t, n + i] = dh_post[first + t, i] * 2 * e / ((1 + e) * (1 + e))
                    gm[t, n + i] = g[t, n + i] * ratio
                    if dm_wanted:
                        dm[first + t, n + i] = g[t, n + i] * a[1] / r[first + t]
            # logits = h
            for t, k in T.Parallel(TOKENS, n * n):
                if first + t < tokens:
                    g[t, 2 * n + k] = dlogits[first + t, k]
                    gm[t, 2 * n + k] = g[t, 2 * n + k] * m[first + t, 2 * n + k] / r[first + t]
                    if dm_wanted:
                        dm[first + t, 2 * n + k] = g[t, 2 * n + k] * a[2] / r[first + t]
            # dr[t] = -1/r[t] sum_k a g[t, k] m[t, k] / r[t]
            if dr_wanted:
                for t in T.Parallel(TOKENS):
                    if first + t < tokens:
                        total[0] = 0
                        for k in T.serial(n):
                            total[0] -= a[0] * gm[t, k]
                        for k in T.serial(n, 2 * n):
                            total[0] -= a[1] * gm[t, k]
                        for k in T.serial(2 * n, K):
                            total[0] -= a[2] * gm[t, k]
                        dr[first + t] = total[0] / r[first + t]
            if sums_wanted:
                # sums[k, block] = sum_t g[t, k], for db
                for k in T.Parallel(K):
                    total[0] = 0
                    for t in T.serial(live):
                        total[0] += g[t, k]
                    sums[k, block] = total[0]
                # sums[K + gate, block] = sum_t sum_k gm[t, k] over the gate's k, for da
                for k in T.Parallel(K):
                    total[0] = 0
                    for t in T.serial(live):
                        total[0] += gm[t, k]
                    gm[TOKENS, k] = total[0]
                for gate in T.Parallel(3):
                    total[0] = 0
                    for k in T.serial(K):
                        if (k >= n) + (k >= 2 * n) == gate:
                            total[0] += gm[TOKENS, k]
                    sums[K + gate, block] = total[0]

    return coefficients_backward


@tile_kernel()
def add_blocks(K):
    """db and da: the blocks' sums, added in an order that only their number decides."""
    blocks = T.dynamic("blocks", "int64")

    @T.prim_func
    def add_blocks(
        sums: T.Tensor((K + 3, blocks), "float32"),
        da: T.Tensor((3,), "float32"),
        db: T.Tensor((K,), "float32"),
    ):
        with T.Kernel(K + 3, threads=ADDERS) as k:
            of_thread = alloc_shared((ADDERS,), "float32")
            of_part = alloc_shared((PARTS,), "float32")
            total = T.alloc_local((1,), "float32")
            for thread in T.Parallel(ADDERS):
                total[0] = 0
                for row in T.serial(T.ceildiv(blocks, ADDERS)):
                    if row * ADDERS + thread < blocks:
                        total[0] += sums[k, row * ADDERS + thread]
                of_thread[thread] = total[0]
            for part in T.Parallel(PARTS):
                total[0] = 0
                for thread in T.serial(ADDERS // PARTS):
                    total[0] += of_thread[part * (ADDERS // PARTS) + thread]
                of_part[part] = total[0]
            for _ in T.Parallel(1):
                total[0] = 0
                for part in T.serial(PARTS):
                    total[0] += of_part[part]
                if k < K:
                    db[k] = total[0]
                else:
                    da[k - K] = total[0]

    return add_blocks


def _outputs(m, r, a, b):
    del r, a, b
    T, n = m.shape[0], N_OF_K[m.shape[1]]
    return m.new_empty(T, n), m.new_empty(T, n), m.new_empty(T, n, n)


def _forward(m: Tensor, r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h_pre, h_post, logits = _outputs(m, r, a, b)
    coefficients(N_OF_K[m.shape[1]])(m, r, a, b, h_pre, h_post, logits.flatten(1))
    return h_pre, h_post, logits


def _backward(needs, dh_pre, dh_post, dlogits, m, r, a, b):
    T, K = m.shape
    # What is not wanted is not stored: any tensor of its shape may stand in for it.
    dm, dr = (torch.empty_like(one) if need else one for one, need in zip((m, r), needs[:2], strict=True))
    da, db = (one.new_zeros(one.shape) if T == 0 else torch.empty_like(one) for one in (a, b))
    sums_wanted = needs[2] or needs[3]
    sums = m.new_empty(K + 3, math.ceil(T / TOKENS))
    kernel = coefficients_backward(N_OF_K[K], (needs[0], needs[1], sums_wanted))
    kernel(dh_pre, dh_post, dlogits.flatten(1), m, r, a, b, dm, dr, sums)
    if sums_wanted:
        add_blocks(K)(sums, da, db)
    return dm, dr, da, db


_operator = Operator(_forward, _backward, _outputs)


def activate(m, r, a, b):
    """Scale the projections by gate and norm, add the bias, constrain the read and write coefficients.

    m, r, a, b  [T, K], [T], [3], [K]           fp32, K = n*n + 2*n in the order pre, post, res, n in 1, 2, 4, 8
    gives       h_pre [T, n], h_post [T, n], logits [T, n, n], fp32

    Fails: ValueError for any other shape or dtype, or inputs on different devices.
    """
    if m.dim() != 2 or m.shape[1] not in N_OF_K:
        raise ValueError(f"m: expected [T, n*n + 2*n] with n in 1, 2, 4, 8; got {list(m.shape)}")
    T, K = m.shape
    for name, tensor, shape in (("m", m, (T, K)), ("r", r, (T,)), ("a", a, (3,)), ("b", b, (K,))):
        if (tensor.shape, tensor.dtype, tensor.device) != (shape, torch.float32, m.device):
            got = f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
            raise ValueError(f"{name}: expected {list(shape)} torch.float32 on {m.device}; got {got}")
    return _operator(m, r, a, b)
