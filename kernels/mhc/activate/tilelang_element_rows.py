"""One pass over blocks of tokens; each thread turns a vector of a token's projections into coefficients."""

import tilelang.language as T
import torch

from perflab.measure.tile_kernel import sizes, tile_kernel

REQUIRES = ("torch", "tilelang")

TOKENS = 64
THREADS = 64


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


def activate(m, r, a, b):
    """Scale the projections by gate and norm, add the bias, constrain the read and write coefficients.

    m, r, a, b  [T, K], [T], [3], [K]           fp32, K = n*n + 2*n in the order pre, post, res
    gives       h_pre [T, n], h_post [T, n], logits [T, n, n], fp32

    Fails: ValueError if K fits none of n = 1, 2, 4, 8.
    """
    tokens, K = sizes(m, "m", "T K", K=(3, 8, 24, 80))
    n = {3: 1, 8: 2, 24: 4, 80: 8}[K]
    h_pre, h_post = (torch.empty((tokens, n), dtype=torch.float32, device=m.device) for _ in range(2))
    logits = torch.empty((tokens, n, n), dtype=torch.float32, device=m.device)
    coefficients(n)(m, r, a, b, h_pre, h_post, logits.view(tokens, n * n))
    return h_pre, h_post, logits
