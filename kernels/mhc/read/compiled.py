"""torch.compile of the four stages together, the products written so that they can fuse."""

import torch

from ..activate.eager import activate
from ..pre.eager import pre
from ..project.eager import project
from ..sinkhorn.eager import sinkhorn

REQUIRES = ("torch",)


def read(x, phi, a, b, eps=1e-20, iterations=20):
    """What the layer function gets, and with what its output will be written; see eager.py for shapes."""
    u, _, h_post, h_res = _read(x, phi, a, b, eps, iterations)
    return u, h_post, h_res


def read_through(x, phi, a, b, eps=1e-20, iterations=20):
    """As `read`, with x for its further uses and the read weights: (x, u, h_pre, h_post, h_res)."""
    u, h_pre, h_post, h_res = _read(x, phi, a, b, eps, iterations)
    return x, u, h_pre.detach(), h_post, h_res


@torch.compile(dynamic=False)
def _read(x, phi, a, b, eps, iterations):
    m, r = project(x, phi, eps)
    h_pre, h_post, logits = activate(m, r, a, b)
    return pre(x, h_pre), h_pre, h_post, sinkhorn(logits, iterations)
