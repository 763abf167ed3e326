"""torch.compile of the three scaled slices."""

import math

import torch

REQUIRES = ("torch",)


@torch.compile(dynamic=False)
def activate(m, r, a, b):
    """Coefficients of every token; see eager.py for shapes."""
    n = math.isqrt(m.shape[1] + 1) - 1
    pre, post, res = m.split((n, n, n * n), 1)
    b_pre, b_post, b_res = b.split((n, n, n * n))
    inverse = (1 / r)[:, None]
    h_pre = (inverse * a[0] * pre + b_pre).sigmoid()
    h_post = 2 * (inverse * a[1] * post + b_post).sigmoid()
    logits = inverse * a[2] * res + b_res
    return h_pre, h_post, logits.unflatten(1, (n, n))
