"""torch.compile of all sites together: one graph, so streams need not come back from memory."""

import torch

from ..post_res.compiled import post_res
from ..pre.compiled import pre

REQUIRES = ("torch",)


@torch.compile(dynamic=False)
def recompute(x, f, h_pre, h_post, h_res):
    """Streams and reads of L sites; see eager.py for shapes."""
    xs, us = [], [pre(x, h_pre[0])]
    for site in range(f.shape[0]):
        x = post_res(x, f[site], h_post[site], h_res[site])
        xs.append(x)
        us.append(pre(x, h_pre[site + 1]))
    return torch.stack(xs) if xs else x.new_empty(0, *x.shape), torch.stack(us)


def rebuild(x, fs, h_pres, h_posts, h_ress):
    """As `recompute`, on sequences of tensors, one a site: lists (xs, us). The compiled stages, for equal bits."""
    xs, us = [], [pre(x, h_pres[0])]
    for f, h_pre, h_post, h_res in zip(fs, h_pres[1:], h_posts, h_ress, strict=True):
        x = post_res(x, f, h_post, h_res)
        xs.append(x)
        us.append(pre(x, h_pre))
    return xs, us
