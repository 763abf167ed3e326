"""The columns are taken in the order post, pre, res."""

import math

REQUIRES = ("torch",)


def activate(m, r, a, b):
    """Wrong on purpose."""
    n = math.isqrt(m.shape[1] + 1) - 1
    post, pre, res = (m / r[:, None]).split((n, n, n * n), 1)
    b_post, b_pre, b_res = b.split((n, n, n * n))
    logits = (a[2] * res + b_res).unflatten(1, (n, n))
    return (a[0] * pre + b_pre).sigmoid(), 2 * (a[1] * post + b_post).sigmoid(), logits
