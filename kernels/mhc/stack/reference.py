"""All sites in fp64, one after the other; how much is kept for backward changes no number."""

from ..post_res.reference import post_res
from ..read.reference import read


def stack(x, phi, a, b, g, w, block, eps, iterations):
    """x_{l+1} = H_res x_l + H_post^T F(H_pre x_l) with F(u) = w (g u / sqrt(mean(u^2) + eps))."""
    for site in range(len(phi)):
        u, h_post, h_res = read(x, phi[site], a[site], b[site], eps, iterations)
        v = g[site] * u / (u.square().mean(1, keepdim=True) + eps).sqrt()
        x = post_res(x, w[site] * v, h_post, h_res)
    return x
