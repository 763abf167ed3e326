"""Gates, biases and sigmoids in fp64."""

import torch


def activate(m, r, a, b):
    """h = (1/r) [a_pre m_pre, a_post m_post, a_res m_res] + b; sigmoid, 2 sigmoid, and the rest as it is."""
    n = int((m.shape[1] + 1) ** 0.5) - 1
    gates = torch.cat([a[0].expand(n), a[1].expand(n), a[2].expand(n * n)])
    h = m * gates / r[:, None] + b
    return h[:, :n].sigmoid(), 2 * h[:, n : 2 * n].sigmoid(), h[:, 2 * n :].unflatten(1, (n, n))
