"""A batched product in fp32, then the weighted output added."""

import torch

REQUIRES = ("torch",)


def post_res(x, f, h_post, h_res):
    """Mixed streams plus the layer's output, accumulated in fp32.

    x       [T, n, C]   stream dtype   residual streams
    f       [T, C]      stream dtype   output of the layer function
    h_post  [T, n]      fp32           weight of f in each stream
    h_res   [T, n, n]   fp32           mixing matrix, [out, in]
    gives   [T, n, C]   stream dtype
    """
    # Autocast would round the product's inputs.
    with torch.autocast(x.device.type, enabled=False):
        mixed = h_res @ x.float()
    return (mixed + h_post[:, :, None] * f[:, None, :].float()).to(x.dtype)
