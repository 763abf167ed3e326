"""The four eager stages, one after the other."""

from perflab.measure.parts import part

from ..activate.eager import activate
from ..pre.eager import pre
from ..project.eager import project
from ..sinkhorn.eager import sinkhorn

REQUIRES = ("torch",)


def read(x, phi, a, b, eps=1e-20, iterations=20):
    """What the layer function gets, and with what its output will be written.

    x      [T, n, C]         stream dtype
    phi    [n C, n^2 + 2n]   fp32, columns in the order pre, post, res
    a      [3]               fp32, gates of pre, post and res
    b      [n^2 + 2n]        fp32, biases
    gives  u [T, C] stream dtype, h_post [T, n], h_res [T, n, n] fp32
    """
    _, u, _, h_post, h_res = read_through(x, phi, a, b, eps, iterations)
    return u, h_post, h_res


def read_through(x, phi, a, b, eps=1e-20, iterations=20):
    """As `read`, with x for its further uses and the read weights: (x, u, h_pre, h_post, h_res)."""
    # One use of x, so that the gradients of both uses inside are added before they meet the write's.
    inside = x.view_as(x)
    with part("project"):
        m, r = project(inside, phi, eps)
    with part("activate"):
        h_pre, h_post, logits = activate(m, r, a, b)
    with part("pre"):
        u = pre(inside, h_pre)
    with part("sinkhorn"):
        h_res = sinkhorn(logits, iterations)
    return x, u, h_pre.detach(), h_post, h_res
