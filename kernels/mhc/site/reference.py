"""Read, layer function and write in fp64."""

from ..post_res.reference import post_res
from ..read.reference import read


def site(x, phi, a, b, w, eps, iterations):
    """y = H_res x + H_post^T F(H_pre x) with F(u) = w u."""
    u, h_post, h_res = read(x, phi, a, b, eps, iterations)
    return post_res(x, w * u, h_post, h_res)
