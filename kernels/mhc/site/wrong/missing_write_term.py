"""Backward forgets that the write mixes x: only the read's terms of x's gradient are left."""

from ...post_res.eager import post_res
from ...read.eager import read

REQUIRES = ("torch",)


def site(x, phi, a, b, w, eps, iterations):
    """Wrong on purpose."""
    u, h_post, h_res = read(x, phi, a, b, eps, iterations)
    return post_res(x.detach(), w * u, h_post, h_res)
