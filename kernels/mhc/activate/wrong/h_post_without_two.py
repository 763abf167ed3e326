"""H_post without its factor 2: the write weights lie in (0, 1)."""

import math

REQUIRES = ("torch",)


def activate(m, r, a, b):
    """Wrong on purpose."""
    n = math.isqrt(m.shape[1] + 1) - 1
    pre, post, res = (m / r[:, None]).split((n, n, n * n), 1)
    b_pre, b_post, b_res = b.split((n, n, n * n))
    logits = (a[2] * res + b_res).unflatten(1, (n, n))
    return (a[0] * pre + b_pre).sigmoid(), (a[1] * post + b_post).sigmoid(), logits
