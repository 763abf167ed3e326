"""Site by site with the eager stages; every site's streams come back from memory."""

import torch

from ..post_res.eager import post_res
from ..pre.eager import pre

REQUIRES = ("torch",)


def recompute(x, f, h_pre, h_post, h_res):
    """Streams and reads of L sites without their layer functions.

    x       [T, n, C]        stream dtype   streams of the first site
    f       [L-1, T, C]      stream dtype   what the layer functions gave, all but the last
    h_pre   [L, T, n]        fp32           read weights
    h_post  [L-1, T, n]      fp32           write weights
    h_res   [L-1, T, n, n]   fp32           mixing matrices, [out, in]
    gives   xs [L-1, T, n, C], the streams of all sites but the first, us [L, T, C], the reads of all, stream dtype
    """
    xs, us = rebuild(x, f, h_pre, h_post, h_res)
    return torch.stack(xs) if xs else x.new_empty(0, *x.shape), torch.stack(us)


def rebuild(x, fs, h_pres, h_posts, h_ress):
    """As `recompute`, on sequences of tensors, one a site: lists (xs, us)."""
    xs, us = [], [pre(x, h_pres[0])]
    for f, h_pre, h_post, h_res in zip(fs, h_pres[1:], h_posts, h_ress, strict=True):
        x = post_res(x, f, h_post, h_res)
        xs.append(x)
        us.append(pre(x, h_pre))
    return xs, us
