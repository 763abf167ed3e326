"""Backward forgets that the norm depends on x too: one of the three terms of x's gradient is missing."""

from ...activate.eager import activate
from ...pre.eager import pre
from ...project.eager import project
from ...sinkhorn.eager import sinkhorn

REQUIRES = ("torch",)


def read(x, phi, a, b, eps, iterations):
    """Wrong on purpose."""
    m, r = project(x, phi, eps)
    h_pre, h_post, logits = activate(m, r.detach(), a, b)
    return pre(x, h_pre), h_post, sinkhorn(logits, iterations)
