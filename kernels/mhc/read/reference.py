"""The four stages in fp64, one after the other."""

from ..activate.reference import activate
from ..pre.reference import pre
from ..project.reference import project
from ..sinkhorn.reference import sinkhorn


def read(x, phi, a, b, eps, iterations):
    """Projection and norm, coefficients, doubly stochastic matrix, weighted sum."""
    m, r = project(x, phi, eps)
    h_pre, h_post, logits = activate(m, r, a, b)
    return pre(x, h_pre), h_post, sinkhorn(logits, iterations)
