"""Three slices, each scaled, shifted and activated on its own."""

import math

REQUIRES = ("torch",)


def activate(m, r, a, b):
    """Coefficients of every token from its raw projections.

    m      [T, n^2 + 2n]   fp32, columns in the order pre, post, res
    r      [T]             fp32, the token's norm
    a      [3]             fp32, gates of pre, post and res
    b      [n^2 + 2n]      fp32, biases
    gives  h_pre [T, n] in (0, 1), h_post [T, n] in (0, 2), logits [T, n, n], all fp32
    """
    n = math.isqrt(m.shape[1] + 1) - 1
    pre, post, res = m.split((n, n, n * n), 1)
    b_pre, b_post, b_res = b.split((n, n, n * n))
    inverse = (1 / r)[:, None]
    h_pre = (inverse * a[0] * pre + b_pre).sigmoid()
    h_post = 2 * (inverse * a[1] * post + b_post).sigmoid()
    logits = inverse * a[2] * res + b_res
    return h_pre, h_post, logits.unflatten(1, (n, n))
